//! What is known of a connection: whether it is over the Unix socket, and whether it is used.
//!
//! The HTTP library bounds the time for a connection's first head and for its silence, but not for a second head that comes
//! byte by byte, nor for a body that nobody reads. And while a client sends requests ahead and does not read its answers, the
//! library looks at them again and again. So each connection is watched and, if need be, closed.

use crate::limits::{HTTP_IDLE, HTTP_LOOK};
use actix_tls::accept::rustls_0_23::TlsStream;
use actix_web::dev::Extensions;
use actix_web::rt::net::{TcpStream, UnixStream};
use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};
use std::any::Any;
use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;
use tokio::task::AbortHandle;

/// Kept with a connection, and found by its requests.
pub(super) struct Connection {
    pub(super) over_socket: bool,
    use_: Rc<Use>,
    watch: Option<AbortHandle>,
}

/// How a connection is used. All of it happens on the thread of its server.
#[derive(Default)]
struct Use {
    under_way: Cell<usize>,
    /// Of those, how many have an answer that is being written.
    answered: Cell<usize>,
    /// How often any of this has changed.
    changes: Cell<u64>,
}

/// A request under way: from its head to the last byte of its answer's body.
pub(super) struct UnderWay {
    use_: Rc<Use>,
    answered: bool,
}

/// Begins to know of a connection.
///
/// That one has no address is no sign of the Unix socket: one over TCP that is gone has none either, and what it sent is still
/// read.
pub(super) fn note(io: &dyn Any, extensions: &mut Extensions) {
    let unix = io.downcast_ref::<UnixStream>().map(AsFd::as_fd);
    let tcp = io.downcast_ref::<TcpStream>().map(AsFd::as_fd);
    let tls = io.downcast_ref::<TlsStream<TcpStream>>().map(|stream| stream.get_ref().0.as_fd());
    extensions.insert(Connection::new(unix.is_some(), unix.or(tcp).or(tls)));
}

impl Connection {
    fn new(over_socket: bool, socket: Option<BorrowedFd<'_>>) -> Self {
        let use_ = Rc::new(Use::default());
        // A handle of its own: the number of one that the library has closed may be another connection's.
        let socket = socket.and_then(|socket| socket.try_clone_to_owned().ok());
        if socket.is_none() {
            tracing::warn!("a connection is not watched; are there too many open files?");
        }
        let watch =
            socket.map(|socket| actix_web::rt::spawn(close_unused(socket, use_.clone())).abort_handle());
        Self { over_socket, use_, watch }
    }

    /// A request has come.
    pub(super) fn begin(&self) -> UnderWay {
        self.use_.under_way.update(|requests| requests + 1);
        self.use_.changes.update(|changes| changes + 1);
        UnderWay { use_: self.use_.clone(), answered: false }
    }
}

impl UnderWay {
    /// Its answer is there, and need only be read.
    pub(super) fn answered(&mut self) {
        self.answered = true;
        self.use_.answered.update(|requests| requests + 1);
        self.use_.changes.update(|changes| changes + 1);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // With its task goes the second handle: the connection is closed when both are.
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.use_.under_way.update(|requests| requests - 1);
        self.use_.answered.update(|requests| requests - usize::from(self.answered));
        self.use_.changes.update(|changes| changes + 1);
    }
}

/// Closes a connection on which nothing has been under way for [`HTTP_IDLE`], or whose client does not read its answer and has
/// sent more than is taken in ahead.
async fn close_unused(socket: OwnedFd, use_: Rc<Use>) {
    let (mut seen, mut unchanged) = (0, Duration::ZERO);
    loop {
        tokio::time::sleep(HTTP_LOOK).await;
        let changes = use_.changes.get();
        unchanged = if changes == seen { unchanged + HTTP_LOOK } else { Duration::ZERO };
        seen = changes;
        let under_way = use_.under_way.get();
        let is_idle = under_way == 0 && unchanged >= HTTP_IDLE;
        let only_sends = under_way > 0
            && use_.answered.get() == under_way
            && unchanged >= 2 * HTTP_LOOK
            && has_unread(&socket);
        if is_idle || only_sends {
            // An error means that it is closed.
            let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
            return;
        }
    }
}

/// Whether something has come that the library has not taken in.
fn has_unread(socket: &OwnedFd) -> bool {
    let look = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    recv(socket.as_raw_fd(), &mut [0], look).is_ok_and(|bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read, Write};

    /// Whether the other end sees the connection closed.
    fn is_closed(mut peer: &std::os::unix::net::UnixStream) -> bool {
        match peer.read(&mut [0; 16]) {
            Ok(0) => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_closed_when_no_request_is_under_way_for_long() {
        let (ours, peer) = std::os::unix::net::UnixStream::pair().expect("a pair");
        peer.set_nonblocking(true).expect("a socket");
        let watched = async {
            let connection = Connection::new(true, Some(ours.as_fd()));
            let under_way = connection.begin();
            tokio::time::sleep(10 * HTTP_IDLE).await;
            assert!(!is_closed(&peer), "a request is under way");
            drop(under_way);
            // Requests that come and go keep it open.
            for _ in 0..5 {
                tokio::time::sleep(HTTP_IDLE - Duration::from_secs(1)).await;
                drop(connection.begin());
            }
            assert!(!is_closed(&peer));
            tokio::time::sleep(HTTP_IDLE + 2 * HTTP_LOOK).await;
            assert!(is_closed(&peer));
        };
        tokio::task::LocalSet::new().run_until(watched).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_waited_for_unless_it_sends_on() {
        let (ours, mut peer) = std::os::unix::net::UnixStream::pair().expect("a pair");
        peer.set_nonblocking(true).expect("a socket");
        let watched = async {
            let connection = Connection::new(true, Some(ours.as_fd()));
            let mut under_way = connection.begin();
            peer.write_all(b"more").expect("room");
            tokio::time::sleep(10 * HTTP_LOOK).await;
            assert!(!is_closed(&peer), "its body may be what comes");
            (&ours).read_exact(&mut [0; 4]).expect("what came");
            under_way.answered();
            tokio::time::sleep(10 * HTTP_IDLE).await;
            assert!(!is_closed(&peer), "it only does not read");
            peer.write_all(b"more").expect("room");
            tokio::time::sleep(4 * HTTP_LOOK).await;
            assert!(is_closed(&peer));
        };
        tokio::task::LocalSet::new().run_until(watched).await;
    }

    #[tokio::test]
    async fn a_connection_that_is_dropped_is_closed_at_once() {
        let (ours, peer) = std::os::unix::net::UnixStream::pair().expect("a pair");
        peer.set_nonblocking(true).expect("a socket");
        let dropped = async {
            let connection = Connection::new(true, Some(ours.as_fd()));
            tokio::task::yield_now().await;
            drop((connection, ours));
            tokio::task::yield_now().await;
            assert!(is_closed(&peer));
        };
        tokio::task::LocalSet::new().run_until(dropped).await;
    }
}
