//! A model from a Hugging Face repository over HTTP, taken up where it broke off.
//!
//! The first answer of the hub names the file's sha256 (`X-Linked-Etag`) and size before it sends the client on to
//! where the bytes are; so a file that changed in between is noticed.

use super::partial::{Expected, Partial, copy, failed};
use crate::failure::Failure;
use crate::limits::{HTTP_SILENCE_TIMEOUT, MAX_HTTP_RESUMES, RECONNECT_DELAY, RECONNECT_DELAY_MAX};
use crate::output;
use std::{
    env,
    fs::{self, File, OpenOptions},
    path::{Path, PathBuf},
    thread,
};
use ureq::{Agent, Body, http::Response};

const ENDPOINT: &str = "https://huggingface.co";

/// Where the file is.
pub(super) struct Source {
    url: String,
    filename: String,
    token: Option<String>,
}

impl Source {
    /// The file of a repository, at `$HF_ENDPOINT` if that is set, with `$HF_TOKEN` if that is set.
    pub(super) fn new(repo: &str, filename: &str, revision: &str) -> Result<Self, Failure> {
        let set = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
        for (what, text) in [("repository", repo), ("file name", filename), ("revision", revision)] {
            let parts_are_names = text.split('/').all(|part| !matches!(part, "" | "." | ".."));
            if !text.chars().all(good) || !parts_are_names {
                return Err(Failure::Usage(format!("{text:?} is no {what} of a Hugging Face repository")));
            }
        }
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into());
        let url = format!("{}/{repo}/resolve/{revision}/{filename}", endpoint.trim_end_matches('/'));
        Ok(Self { url, filename: filename.into(), token: set("HF_TOKEN") })
    }
}

/// Fetches the file; gives it and what the hub says of it.
pub(super) fn fetch(source: &Source, partial: &Partial) -> Result<(PathBuf, Expected), Failure> {
    let agent = agent();
    let told = ask(&agent, source)?;
    let file = partial.path("download");
    let identity = format!("{}\n{:?}\n{:?}\n", source.url, told.sha256, told.bytes);
    let identity_file = partial.path("download.source");
    if fs::read_to_string(&identity_file).ok().as_deref() != Some(&identity) {
        // What is here is of another file.
        let _ = fs::remove_file(&file);
        fs::write(&identity_file, &identity).map_err(|error| failed("write", &identity_file, &error))?;
    }
    if let Some(bytes) = told.bytes {
        partial.require_space(bytes)?;
    }
    let mut delay = RECONNECT_DELAY;
    let mut tries = 0;
    loop {
        let before = size(&file);
        match transfer(&agent, source, &file, told.bytes) {
            Ok(()) => return Ok((file, told)),
            Err(Transfer::Final(failure)) => return Err(failure),
            Err(Transfer::Broken(why)) => {
                if size(&file) > before {
                    (tries, delay) = (0, RECONNECT_DELAY);
                }
                if tries == MAX_HTTP_RESUMES {
                    let here = size(&file);
                    return Err(Failure::Failed(format!(
                        "{} broke off: {why}; {here} bytes are kept, pull again to go on",
                        source.url
                    )));
                }
                tries += 1;
                thread::sleep(delay);
                delay = (delay * 2).min(RECONNECT_DELAY_MAX);
            }
        }
    }
}

enum Transfer {
    /// Trying again may help.
    Broken(String),
    /// It will not.
    Final(Failure),
}

fn agent() -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        .accept_encoding("identity")
        .timeout_connect(Some(HTTP_SILENCE_TIMEOUT))
        .timeout_per_read(Some(HTTP_SILENCE_TIMEOUT))
        .build()
        .into()
}

/// What the hub says of the file, from its own answer and not the one it sends the client on to.
fn ask(agent: &Agent, source: &Source) -> Result<Expected, Failure> {
    let mut request =
        agent.head(&source.url).config().max_redirects(0).max_redirects_will_error(false).build();
    if let Some(token) = &source.token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let response =
        request.call().map_err(|error| Failure::Failed(format!("cannot reach {}: {error}", source.url)))?;
    match response.status().as_u16() {
        200..=399 => {}
        code => return Err(status_failure(source, code)),
    }
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    let sha256 = header("x-linked-etag")
        .map(|etag| etag.trim_matches('"').to_ascii_lowercase())
        .filter(|etag| etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit()));
    let own_length = response.status().is_success().then(|| header("content-length")).flatten();
    let bytes = header("x-linked-size").or(own_length).and_then(|length| length.parse().ok());
    Ok(Expected { bytes, sha256 })
}

/// Appends to `file` what it lacks.
fn transfer(agent: &Agent, source: &Source, file: &Path, total: Option<u64>) -> Result<(), Transfer> {
    let have = size(file);
    if have > 0 && total == Some(have) {
        return Ok(());
    }
    let mut request = agent.get(&source.url);
    if have > 0 {
        request = request.header("range", format!("bytes={have}-"));
    }
    if let Some(token) = &source.token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let mut response = request.call().map_err(|error| Transfer::Broken(error.to_string()))?;
    let begin = match response.status().as_u16() {
        200 => 0,
        206 if starts_at(&response, have) => have,
        206 => return Err(Transfer::Broken("the server sent another range than was asked for".into())),
        code @ (408 | 429 | 500..=599) => {
            return Err(Transfer::Broken(format!("the server answered {code}")));
        }
        code => return Err(Transfer::Final(status_failure(source, code))),
    };
    let write = |error| Transfer::Final(failed("write", file, &error));
    let mut to = OpenOptions::new().create(true).append(true).open(file).map_err(write)?;
    to.set_len(begin).map_err(write)?;
    let bar = output::bytes_bar(&source.filename, total.unwrap_or(0));
    bar.set_position(begin);
    let mut body = response.body_mut().with_config().limit(u64::MAX).reader();
    let copied = copy(&mut body, &mut to, &bar, |_| {});
    bar.finish_and_clear();
    let here = begin + copied.map_err(|error| Transfer::Broken(error.to_string()))?;
    match total {
        Some(total) if here < total => {
            Err(Transfer::Broken(format!("the server sent {here} of {total} bytes")))
        }
        _ => Ok(()),
    }
}

fn starts_at(response: &Response<Body>, offset: u64) -> bool {
    let range = response.headers().get("content-range").and_then(|value| value.to_str().ok());
    range.is_some_and(|range| range.starts_with(&format!("bytes {offset}-")))
}

fn status_failure(source: &Source, code: u16) -> Failure {
    let url = &source.url;
    match code {
        401 | 403 => {
            Failure::Refused(format!("{url} answers {code}: set HF_TOKEN to a token that may read it"))
        }
        404 => Failure::Refused(format!("there is no {url}")),
        _ => Failure::Failed(format!("{url} answers {code}")),
    }
}

fn size(file: &Path) -> u64 {
    File::open(file).and_then(|file| file.metadata()).map_or(0, |metadata| metadata.len())
}
