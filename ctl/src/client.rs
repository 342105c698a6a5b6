//! One connection to the daemon: hello, requests, answers in order.
//!
//! Most commands ask one thing at a time, so answers to other requests cannot come; one that does is a protocol error.
//! `batch` has several requests in flight, and tells their answers apart by their ids.

use crate::cli::GlobalArgs;
use crate::failure::Failure;
use crate::limits::{EXIT_POLL, HANDSHAKE_TIMEOUT, MAX_EXIT_POLLS, READ_BYTES};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::{
    fs,
    io::{self, Read},
    os::unix::{fs::MetadataExt, net::UnixStream},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};
use zllm_wire::{
    Answer, ClientFrame, FrameDecoder, Op, Reply, Request, ServerFrame, VERSION, find_socket_path,
    write_frame,
};

/// What holds for the whole command.
pub(crate) struct Context {
    /// Where the daemon listens.
    pub(crate) socket: PathBuf,
    /// Whether stdout is for programs.
    pub(crate) json: bool,
}

impl Context {
    pub(crate) fn new(args: &GlobalArgs) -> Self {
        Self { socket: args.socket.clone().unwrap_or_else(find_socket_path), json: args.json }
    }

    /// Connects and exchanges hellos.
    pub(crate) fn connect(&self) -> Result<Connection, Failure> {
        Connection::open(&self.socket)
    }

    /// Connects, asks one thing, and gives its final answer.
    pub(crate) fn ask(&self, op: Op) -> Result<Answer, Failure> {
        self.connect()?.ask(op)
    }
}

/// An open connection after its hello.
pub(crate) struct Connection {
    stream: UnixStream,
    decoder: FrameDecoder,
    last_id: u64,
    /// The daemon's process, as it says itself.
    daemon_pid: u32,
}

impl Connection {
    fn open(socket: &Path) -> Result<Self, Failure> {
        refuse_planted(socket)?;
        let stream = UnixStream::connect(socket).map_err(|error| unreachable_daemon(socket, &error))?;
        let mut connection = Self { stream, decoder: FrameDecoder::new(), last_id: 0, daemon_pid: 0 };
        connection.shake_hands().map_err(|failure| match failure {
            Failure::Lost(why) => Failure::Lost(format!("no hello on {}: {why}", socket.display())),
            other => other,
        })?;
        Ok(connection)
    }

    fn shake_hands(&mut self) -> Result<(), Failure> {
        self.stream
            .set_read_timeout(Some(HANDSHAKE_TIMEOUT))
            .map_err(|error| Failure::Lost(error.to_string()))?;
        let client = concat!("zllmctl ", env!("CARGO_PKG_VERSION")).to_owned();
        let sent = write_frame(&mut self.stream, &ClientFrame::Hello { version: VERSION, client });
        // A daemon that is full says so and closes without reading, so what it said is read even after a failed write.
        let answer = self.frame().or_else(|failure| sent.map_err(Failure::sending).and(Err(failure)))?;
        match answer {
            ServerFrame::Welcome { version: VERSION, pid, .. } => self.daemon_pid = pid,
            ServerFrame::Welcome { version, server, .. } => {
                return Err(Failure::Refused(format!(
                    "{server} speaks protocol version {version}, this zllmctl {VERSION}; install the same version of both"
                )));
            }
            ServerFrame::Refused { message, .. } => return Err(Failure::Refused(message)),
            ServerFrame::Reply(_) => return Err(out_of_turn()),
        }
        self.stream.set_read_timeout(None).map_err(|error| Failure::Lost(error.to_string()))?;
        Ok(())
    }

    /// The socket, so that an interrupt can shut it down from another thread.
    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Sends a request; its answers come from [`Self::answer`].
    pub(crate) fn send(&mut self, body: Op) -> Result<(), Failure> {
        self.last_id += 1;
        write_frame(&mut self.stream, &ClientFrame::Request(Request { id: self.last_id, body }))
            .map_err(Failure::sending)
    }

    /// Asks one thing, and gives its final answer.
    pub(crate) fn ask(&mut self, op: Op) -> Result<Answer, Failure> {
        self.send(op)?;
        loop {
            let answer = self.answer()?;
            if answer.is_final() {
                return Ok(answer);
            }
        }
    }

    /// The id that the next request gets.
    pub(crate) fn next_id(&self) -> u64 {
        self.last_id + 1
    }

    /// Waits at most so long for an answer to any request that was sent, and gives it with the request's id.
    pub(crate) fn any_answer(&mut self, patience: Duration) -> Result<Option<(u64, Answer)>, Failure> {
        // No time at all would be one without end.
        let patience = patience.max(Duration::from_millis(1));
        self.patience(Some(patience))?;
        let frame = self.frame_in_time();
        // Whoever asks next waits as long as it takes.
        self.patience(None)?;
        match frame? {
            None => Ok(None),
            Some(ServerFrame::Reply(Reply { id, body })) => Ok(Some((id, body))),
            Some(ServerFrame::Refused { message, .. }) => Err(Failure::Failed(message)),
            Some(ServerFrame::Welcome { .. }) => Err(out_of_turn()),
        }
    }

    fn patience(&self, time: Option<Duration>) -> Result<(), Failure> {
        self.stream.set_read_timeout(time).map_err(|error| Failure::Lost(error.to_string()))
    }

    /// Waits for the next answer to the request that was sent last. An error answer is a [`Failure`].
    pub(crate) fn answer(&mut self) -> Result<Answer, Failure> {
        match self.frame()? {
            ServerFrame::Reply(Reply { id, body }) if id == self.last_id => match body {
                Answer::Error(fault) => Err(fault.into()),
                answer => Ok(answer),
            },
            ServerFrame::Refused { message, .. } => Err(Failure::Failed(message)),
            ServerFrame::Reply(_) | ServerFrame::Welcome { .. } => Err(out_of_turn()),
        }
    }

    /// Waits until the daemon has closed the connection and its process has ended, so that its socket, its lock and
    /// its ports are free.
    pub(crate) fn wait_for_end(mut self) -> Result<(), Failure> {
        loop {
            match self.frame() {
                Ok(_) => {}
                Err(Failure::Lost(_)) => break,
                Err(other) => return Err(other),
            }
        }
        // Where the kernel names another process (that of systemd, which listened first) or none (in another
        // namespace), the pid says nothing about ours.
        let Ok(peer) = getsockopt(&self.stream, PeerCredentials) else { return Ok(()) };
        if u32::try_from(peer.pid()) != Ok(self.daemon_pid) {
            return Ok(());
        }
        for _ in 0..MAX_EXIT_POLLS {
            if has_ended(self.daemon_pid) {
                return Ok(());
            }
            thread::sleep(EXIT_POLL);
        }
        Err(Failure::Failed(format!(
            "the daemon has closed its socket, but its process {} goes on",
            peer.pid()
        )))
    }

    fn frame(&mut self) -> Result<ServerFrame, Failure> {
        let seconds = HANDSHAKE_TIMEOUT.as_secs();
        self.frame_in_time()?.ok_or_else(|| Failure::Lost(format!("no answer in {seconds} s")))
    }

    /// The next frame; `None` when the socket's time for reading is over.
    fn frame_in_time(&mut self) -> Result<Option<ServerFrame>, Failure> {
        let mut buffer = [0; READ_BYTES];
        loop {
            if let Some(frame) = self.decoder.pop().map_err(Failure::receiving)? {
                return Ok(Some(frame));
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(Failure::Lost("the daemon closed it".into())),
                Ok(bytes) => self.decoder.push(&buffer[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(Failure::Lost(error.to_string())),
            }
        }
    }
}

/// What a command makes of an answer that is none to its question.
pub(crate) fn unexpected(answer: &Answer) -> Failure {
    let name = format!("{answer:?}");
    let end = name.find(|c: char| !c.is_alphanumeric()).unwrap_or(name.len());
    Failure::Failed(format!("the daemon answered {}, which is no answer to this request", &name[..end]))
}

/// Whether a process is gone, or only waits for its parent to ask how it ended.
fn has_ended(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // `PID (NAME) STATE ...`; the name may have brackets of its own.
    stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with(['Z', 'X']))
}

fn out_of_turn() -> Failure {
    Failure::Failed("the daemon sent an answer that nothing was asked for".into())
}

/// Refuses a socket in a folder that another user made where everybody may make one, such as `/tmp/zllm-UID`: what
/// answers there need not be the daemon, and would read the prompts.
fn refuse_planted(socket: &Path) -> Result<(), Failure> {
    let Some(folder) = socket.parent() else { return Ok(()) };
    // What is not there cannot have been planted; connecting says what is missing.
    let (Some(Ok(around)), Ok(inside)) = (folder.parent().map(fs::metadata), fs::symlink_metadata(folder))
    else {
        return Ok(());
    };
    if !is_planted(around.mode(), inside.uid(), nix::unistd::Uid::effective().as_raw()) {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "{} belongs to user {}, who may not be trusted with your prompts; name another socket with --socket or ZLLM_SOCKET",
        folder.display(),
        inside.uid()
    )))
}

fn is_planted(mode_around: u32, owner: u32, own: u32) -> bool {
    let anybody_may_write = mode_around & 0o002 != 0;
    anybody_may_write && owner != own && owner != 0
}

fn unreachable_daemon(socket: &Path, error: &io::Error) -> Failure {
    let socket = socket.display();
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Failure::Refused(format!(
            "no daemon listens on {socket}; start one with `zllmd` (or `systemctl start zllmd`), \
             or name its socket with --socket or ZLLM_SOCKET"
        )),
        io::ErrorKind::PermissionDenied => {
            Failure::Refused(format!("no permission to use {socket}; join the group that owns it"))
        }
        _ => Failure::Refused(format!("cannot connect to {socket}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_nobody_has_waited_for_has_ended_too() {
        assert!(!has_ended(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while !has_ended(child.id()) {
            thread::sleep(EXIT_POLL);
        }
        child.wait().unwrap();
        assert!(has_ended(child.id()));
    }

    #[test]
    fn only_a_strangers_folder_in_a_public_place_is_refused() {
        let (public, private) = (0o41777, 0o40755);
        assert!(is_planted(public, 1001, 1000));
        assert!(!is_planted(public, 1000, 1000) && !is_planted(public, 0, 1000));
        assert!(!is_planted(private, 999, 1000), "the system's daemon has a folder of its own user in /run");
    }
}
