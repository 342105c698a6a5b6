//! The files that a batch's results go to.
//!
//! While results come they are appended to `OUTPUT.partial` and `ERRORS.partial`, each locked for as long as the command
//! runs. At the end they are written again in the order of the input, synced, and renamed to their final names; the
//! partial files go. So a command that was killed finds what it had, and what it finds is never fetched or computed again.
//! Nothing needs to be synced before the end: what a power cut takes from a partial file is read from the daemon again.
//!
//! Invariant: one result for each request, in one of the files. A file with anything else is never written to.

use super::answer::Outcome;
use super::input::Input;
use crate::failure::Failure;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    ffi::OsString,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, BufRead, BufReader, BufWriter, ErrorKind, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};
use zllm_wire::JobId;

/// The results so far.
#[derive(Debug)]
pub(crate) struct Results {
    answers: Part,
    errors: Part,
    /// Where each request's result is.
    places: Vec<Option<Place>>,
    /// Tokens that were generated for all of them.
    pub(crate) tokens: u64,
}

/// One of the two files.
#[derive(Debug)]
struct Part {
    target: PathBuf,
    partial: PathBuf,
    file: File,
    bytes: u64,
    lines: usize,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    is_error: bool,
    offset: u64,
    bytes: usize,
}

/// Which request a line is the result of.
type Ids = HashMap<String, usize>;

impl Results {
    /// Locks the files and takes over what they have, under both names.
    ///
    /// # Errors
    /// Another command writes to them, or they have something else than results of this batch.
    pub(crate) fn open(input: &Input, output: &Path, errors: &Path) -> Result<Self, Failure> {
        let ids: Ids = (0..input.len()).map(|place| (input.result_id(place), place)).collect();
        let mut results = Self {
            answers: Part::open(output)?,
            errors: Part::open(errors)?,
            places: vec![None; input.len()],
            tokens: 0,
        };
        for is_error in [false, true] {
            results.take_partial(is_error, &ids)?;
            results.take_final(is_error, &ids)?;
        }
        Ok(results)
    }

    /// Whether a request has its result.
    pub(crate) fn has(&self, place: usize) -> bool {
        self.places[place].is_some()
    }

    /// How many answers and how many errors there are.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.answers.lines, self.errors.lines)
    }

    /// Keeps a request's result. `job` is `None` for one that never became a job.
    pub(crate) fn write(
        &mut self,
        input: &Input,
        place: usize,
        job: Option<&JobId>,
        outcome: &Outcome,
    ) -> Result<(), Failure> {
        let (response, error, is_error) = match outcome {
            Outcome::Done { body, tokens } => {
                self.tokens += tokens;
                (json!({ "status_code": 200, "request_id": job, "body": body }), Value::Null, false)
            }
            Outcome::Failed { code, message } => {
                (Value::Null, json!({ "code": code, "message": message }), true)
            }
        };
        let line = json!({
            "id": input.result_id(place),
            "custom_id": input.custom_id(place),
            "response": response,
            "error": error,
        });
        self.append(is_error, place, format!("{line}\n").as_bytes())
    }

    /// Puts the results in the order of the input under their final names. The file of errors is there only when it has some.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        for (part, is_error) in [(&self.answers, false), (&self.errors, true)] {
            if !is_error || part.lines > 0 {
                let places = self.places.iter().flatten().filter(|place| place.is_error == is_error);
                part.publish(places).map_err(|error| part.failure("write", &error))?;
            }
            fs::remove_file(&part.partial)
                .map_err(|error| part.failure("remove the partial file of", &error))?;
        }
        Ok(())
    }

    fn append(&mut self, is_error: bool, place: usize, line: &[u8]) -> Result<(), Failure> {
        debug_assert!(self.places[place].is_none(), "a request has one result");
        let part = if is_error { &mut self.errors } else { &mut self.answers };
        let at = Place { is_error, offset: part.bytes, bytes: line.len() };
        part.file.write_all_at(line, part.bytes).map_err(|error| part.failure("write", &error))?;
        part.bytes += line.len() as u64;
        part.lines += 1;
        self.places[place] = Some(at);
        Ok(())
    }

    /// Takes over what a command has left that did not end. It may have been cut off within a line.
    fn take_partial(&mut self, is_error: bool, ids: &Ids) -> Result<(), Failure> {
        let part = if is_error { &self.errors } else { &self.answers };
        let mut reader = BufReader::new(&part.file);
        let (mut line, mut offset, mut found) = (Vec::new(), 0, Vec::new());
        loop {
            line.clear();
            let bytes = reader.read_until(b'\n', &mut line).map_err(|error| part.failure("read", &error))?;
            if bytes == 0 || is_cut_off(&line) {
                break;
            }
            let result = serde_json::from_slice(&line).unwrap_or_default();
            let place = part.place_of(&part.partial, &result, ids)?;
            found.push((place, Place { is_error, offset, bytes }, tokens_of(&result)));
            offset += bytes as u64;
        }
        part.file.set_len(offset).map_err(|error| part.failure("write", &error))?;
        let part = if is_error { &mut self.errors } else { &mut self.answers };
        part.bytes = offset;
        for (place, at, tokens) in found {
            if self.places[place].is_none() {
                self.places[place] = Some(at);
                self.tokens += tokens;
                part.lines += 1;
            }
        }
        Ok(())
    }

    /// Takes over what a command has left that ended.
    fn take_final(&mut self, is_error: bool, ids: &Ids) -> Result<(), Failure> {
        let part = if is_error { &self.errors } else { &self.answers };
        let file = match File::open(&part.target) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(part.failure("read", &error)),
        };
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let part = if is_error { &self.errors } else { &self.answers };
            let bytes = reader.read_until(b'\n', &mut line).map_err(|error| part.failure("read", &error))?;
            if bytes == 0 {
                return Ok(());
            }
            let result = serde_json::from_slice(&line).unwrap_or_default();
            let place = part.place_of(&part.target, &result, ids)?;
            if self.places[place].is_none() {
                self.tokens += tokens_of(&result);
                self.append(is_error, place, &line)?;
            }
        }
    }
}

impl Part {
    fn open(target: &Path) -> Result<Self, Failure> {
        let partial = partial(target);
        let file = lock(&partial)?;
        Ok(Self { target: target.to_owned(), partial, file, bytes: 0, lines: 0 })
    }

    /// The request that a line is the result of.
    fn place_of(&self, path: &Path, result: &Value, ids: &Ids) -> Result<usize, Failure> {
        let place = result.get("id").and_then(Value::as_str).and_then(|id| ids.get(id));
        place.copied().ok_or_else(|| {
            let path = path.display();
            Failure::Refused(format!(
                "{path} is not of this batch and was left as it is; move it away, or name other files with --output and --errors"
            ))
        })
    }

    /// Writes lines to the final name.
    fn publish<'a>(&self, places: impl Iterator<Item = &'a Place>) -> io::Result<()> {
        let ordered = beside(&self.target, ".ordered");
        let mut out = BufWriter::new(File::create(&ordered)?);
        let mut line = Vec::new();
        for place in places {
            line.resize(place.bytes, 0);
            self.file.read_exact_at(&mut line, place.offset)?;
            out.write_all(&line)?;
        }
        out.into_inner()?.sync_all()?;
        fs::rename(&ordered, &self.target)?;
        // The name is on the disk when its folder is.
        let folder = self.target.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }

    fn failure(&self, what: &str, error: &io::Error) -> Failure {
        Failure::Failed(format!("cannot {what} {}: {error}", self.target.display()))
    }
}

/// Where results are while they come.
pub(crate) fn partial(target: &Path) -> PathBuf {
    beside(target, ".partial")
}

/// Whether a command writes the results that go to this file.
pub(crate) fn is_being_written(target: &Path) -> bool {
    let Ok(file) = File::open(partial(target)) else { return false };
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// Opens a file, made if there is none, and locks it. The one that had it locked before may have removed it meanwhile:
/// then it is opened again.
fn lock(path: &Path) -> Result<File, Failure> {
    let failure = |error: io::Error| Failure::Refused(format!("cannot write to {}: {error}", path.display()));
    loop {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path).map_err(failure)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let path = path.display();
                return Err(Failure::Refused(format!(
                    "another zllmctl writes to {path}; this batch is being run already"
                )));
            }
            Err(TryLockError::Error(error)) => return Err(failure(error)),
        }
        let ours = file.metadata().map_err(failure)?;
        if fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
            return Ok(file);
        }
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Whether a file's last line is the beginning of a result, or of nothing: a power cut may leave zeros.
fn is_cut_off(line: &[u8]) -> bool {
    const BEGINNING: &[u8] = b"{\"id\":\"batch_req_";
    let ours = line.starts_with(BEGINNING) || BEGINNING.starts_with(line) || line.starts_with(&[0]);
    ours && !line.ends_with(b"\n")
}

/// Tokens that were generated for a result, as it says itself.
fn tokens_of(result: &Value) -> u64 {
    result["response"]["body"]["usage"]["completion_tokens"].as_u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zllm_wire::BatchId;

    fn input(dir: &Path, lines: usize) -> Input {
        let path = dir.join("in.jsonl");
        let line = |place| {
            format!(
                "{{\"custom_id\":\"c{place}\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{{\"model\":\"m\",\"prompt\":\"p\"}}}}\n"
            )
        };
        fs::write(&path, (0..lines).map(line).collect::<String>()).unwrap();
        Input::read(&path, Some(BatchId::new("b").unwrap())).unwrap()
    }

    fn done(tokens: u64) -> Outcome {
        Outcome::Done { body: json!({ "usage": { "completion_tokens": tokens } }), tokens }
    }

    fn failed() -> Outcome {
        Outcome::Failed { code: "server_error", message: "no".into() }
    }

    fn ids(path: &Path) -> Vec<String> {
        let id = |line: &str| {
            serde_json::from_str::<Value>(line).unwrap()["custom_id"].as_str().unwrap().to_owned()
        };
        fs::read_to_string(path).unwrap().lines().map(id).collect()
    }

    #[test]
    fn results_end_in_the_order_of_the_input() {
        let dir = tempfile::tempdir().unwrap();
        let (input, out, err) = (input(dir.path(), 4), dir.path().join("out"), dir.path().join("err"));
        let job = JobId::new("j-01").unwrap();
        let mut results = Results::open(&input, &out, &err).unwrap();
        for (place, outcome) in [(3, done(5)), (1, failed()), (0, done(2))] {
            results.write(&input, place, Some(&job), &outcome).unwrap();
        }
        assert_eq!(ids(&dir.path().join("out.partial")), ["c3", "c0"], "results are there as they come");
        drop(results);

        // Killed while it wrote a line.
        let partial = dir.path().join("out.partial");
        let whole = fs::read(&partial).unwrap();
        fs::write(&partial, [&whole[..], b"{\"id\":\"batch_req"].concat()).unwrap();
        let mut results = Results::open(&input, &out, &err).unwrap();
        assert_eq!((results.counts(), results.tokens), ((2, 1), 7));
        assert_eq!([0, 1, 2, 3].map(|place| results.has(place)), [true, true, false, true]);
        results.write(&input, 2, Some(&job), &done(1)).unwrap();
        results.finish().unwrap();
        assert_eq!(
            (ids(&out), ids(&err)),
            (vec!["c0".to_owned(), "c2".into(), "c3".into()], vec!["c1".to_owned()])
        );
        let mut names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["err", "in.jsonl", "out"], "nothing is left behind");
        let line: Value = serde_json::from_str(fs::read_to_string(&err).unwrap().trim()).unwrap();
        let wanted = json!({
            "id": input.result_id(1), "custom_id": "c1", "response": null,
            "error": {"code": "server_error", "message": "no"},
        });
        assert_eq!(line, wanted);

        // The same again changes nothing.
        let before = fs::read(&out).unwrap();
        let results = Results::open(&input, &out, &err).unwrap();
        assert_eq!((results.counts(), results.tokens), ((3, 1), 8));
        results.finish().unwrap();
        assert_eq!(fs::read(&out).unwrap(), before);
    }

    #[test]
    fn a_file_without_errors_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let (input, out, err) = (input(dir.path(), 1), dir.path().join("out"), dir.path().join("err"));
        let mut results = Results::open(&input, &out, &err).unwrap();
        results.write(&input, 0, None, &done(1)).unwrap();
        results.finish().unwrap();
        assert!(out.exists() && !err.exists());
    }

    #[test]
    fn what_is_not_ours_is_left_alone() {
        for name in ["out", "out.partial", "err", "err.partial"] {
            for text in ["notes\n", "notes", "{\"id\":\"batch_req_of_another\"}\n"] {
                let dir = tempfile::tempdir().unwrap();
                let (input, out, err) =
                    (input(dir.path(), 1), dir.path().join("out"), dir.path().join("err"));
                fs::write(dir.path().join(name), text).unwrap();
                let opened = Results::open(&input, &out, &err);
                let Err(Failure::Refused(why)) = opened else { panic!("{name} with {text} was taken") };
                assert!(why.contains("is not of this batch"), "{why}");
                assert_eq!(fs::read_to_string(dir.path().join(name)).unwrap(), text);
            }
        }
    }

    #[test]
    fn one_command_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let (input, out, err) = (input(dir.path(), 1), dir.path().join("out"), dir.path().join("err"));
        assert!(!is_being_written(&out));
        let first = Results::open(&input, &out, &err).unwrap();
        assert!(is_being_written(&out));
        let second = Results::open(&input, &out, &err);
        assert!(matches!(second, Err(Failure::Refused(why)) if why.contains("another zllmctl")));
        drop(first);
        assert!(!is_being_written(&out) && Results::open(&input, &out, &err).is_ok());
    }
}
