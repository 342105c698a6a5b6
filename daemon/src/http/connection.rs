//! What is known of a connection: whether it is over the Unix socket, and whether it is used.
//!
//! The HTTP library bounds the time for a connection's first head and for its silence, but not for a second head that comes
//! byte by byte, nor for a body that nobody reads. So each connection is watched: one without a request under way is closed.

use crate::limits::HTTP_IDLE;
use actix_tls::accept::rustls_0_23::TlsStream;
use actix_web::dev::Extensions;
use actix_web::rt::net::{TcpStream, UnixStream};
use nix::sys::socket::{Shutdown, shutdown};
use std::any::Any;
use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
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
    /// How often one has begun or ended.
    changes: Cell<u64>,
}

/// A request under way: from its head to the last byte of its answer's body.
pub(super) struct UnderWay(Rc<Use>);

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
        UnderWay(self.use_.clone())
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
        self.0.under_way.update(|requests| requests - 1);
        self.0.changes.update(|changes| changes + 1);
    }
}

/// Closes a connection on which nothing was under way from one look to the next.
async fn close_unused(socket: OwnedFd, use_: Rc<Use>) {
    let mut seen = None;
    loop {
        tokio::time::sleep(HTTP_IDLE).await;
        let now = (use_.under_way.get() == 0).then(|| use_.changes.get());
        if now.is_some() && now == seen {
            // An error means that it is closed.
            let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
            return;
        }
        seen = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read};
    use std::time::Duration;

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
            tokio::time::sleep(2 * HTTP_IDLE + Duration::from_secs(1)).await;
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
