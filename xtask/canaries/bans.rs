//! The canary of the house's bans: each line with a mark (the lint, and the banned path) must be an error, no other may.
//! `cargo xtask canaries` builds this file with the workspace's own `clippy.toml` and lint table; it is never compiled
//! into anything. Every entry of `clippy.toml` needs its line here.
#![allow(missing_docs, dead_code)]

use actix::prelude::*;

struct Canary;

impl Actor for Canary {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.notify(Ping); // canary: clippy::disallowed_methods actix::AsyncContext::notify
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct Ping;

impl Handler<Ping> for Canary {
    type Result = ();

    fn handle(&mut self, _: Ping, _: &mut Self::Context) {}
}

struct Worker;

impl Actor for Worker {
    type Context = SyncContext<Self>;
}

fn mailboxes(address: &Addr<Canary>, recipient: &Recipient<Ping>) {
    address.do_send(Ping); // canary: clippy::disallowed_methods actix::Addr::do_send
    Addr::do_send(address, Ping); // canary: clippy::disallowed_methods actix::Addr::do_send
    let by_pointer: fn(&Addr<Canary>, Ping) = Addr::<Canary>::do_send::<Ping>; // canary: clippy::disallowed_methods actix::Addr::do_send
    by_pointer(address, Ping);
    recipient.do_send(Ping); // canary: clippy::disallowed_methods actix::Recipient::do_send
    let _ = SyncArbiter::start(1, || Worker); // canary: clippy::disallowed_methods actix::SyncArbiter::start
    let _ = address.try_send(Ping);
}

fn queues() {
    let _ = std::sync::mpsc::channel::<u8>(); // canary: clippy::disallowed_methods std::sync::mpsc::channel
    let _ = tokio::sync::mpsc::unbounded_channel::<u8>(); // canary: clippy::disallowed_methods tokio::sync::mpsc::unbounded_channel
    let _ = std::sync::mpsc::sync_channel::<u8>(1);
    let _ = tokio::sync::mpsc::channel::<u8>(1);
}

fn clocks(then: std::time::Instant, date: std::time::SystemTime, tick: tokio::time::Instant) {
    let _ = std::time::Instant::now(); // canary: clippy::disallowed_methods std::time::Instant::now
    let _ = then.elapsed(); // canary: clippy::disallowed_methods std::time::Instant::elapsed
    let _ = std::time::SystemTime::now(); // canary: clippy::disallowed_methods std::time::SystemTime::now
    let _ = date.elapsed(); // canary: clippy::disallowed_methods std::time::SystemTime::elapsed
    let _ = tokio::time::Instant::now(); // canary: clippy::disallowed_methods tokio::time::Instant::now
    let _ = tick.elapsed(); // canary: clippy::disallowed_methods tokio::time::Instant::elapsed
}

/// The lints of the workspace's own table that guard the rest of STYLE.
fn lints(pointer: *const u8) {
    dbg!(pointer); // canary: clippy::dbg_macro
    let _ = unsafe { *pointer }; // canary: clippy::undocumented_unsafe_blocks
}

unsafe fn whole_body(pointer: *const u8) -> u8 {
    // The compiler reports `unsafe_op_in_unsafe_fn` under this code.
    *pointer // canary: E0133
}

fn unfinished(which: bool) -> u8 {
    if which {
        todo!() // canary: clippy::todo
    } else {
        unimplemented!() // canary: clippy::unimplemented
    }
}
