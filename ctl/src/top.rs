//! `top`: a live view of the daemon at a terminal; a plain page, or lines of JSON, elsewhere.
//!
//! Invariant: however it ends (a key, a signal, a panic), the terminal is as it was before.

mod feed;
mod keys;
mod lists;
mod page;
#[cfg(test)]
mod tests;

use crate::cli::TopArgs;
use crate::client::Context;
use crate::clock;
use crate::failure::Failure;
use crate::limits::{KEY_PERIOD, PLAIN_COLUMNS, STALE_INTERVALS};
use crate::output;
use feed::{News, Snapshot};
use keys::Choices;
use nix::sys::signal::{SigSet, Signal};
use page::View;
use ratatui::crossterm::event::{self, Event};
use ratatui::{DefaultTerminal, Frame, text::Text, widgets::Paragraph};
use std::{
    io::{self, IsTerminal},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

/// `top`.
pub(crate) fn top(context: Context, args: &TopArgs) -> Result<(), Failure> {
    let interval = Duration::from_millis(args.interval);
    let once = args.once || (!context.json && !io::stdout().is_terminal());
    if once {
        return print_once(&context);
    }
    if context.json {
        return print_lines(context, interval);
    }
    // Before any thread is started, so that all inherit the blocked signals.
    let ended = watch_signals()?;
    let news = feed::start(context, interval)?;
    let no_terminal = |error: io::Error| Failure::Failed(format!("cannot draw at this terminal: {error}"));
    let lived =
        ratatui::try_init().and_then(|mut terminal| Live::new(interval).run(&mut terminal, &news, &ended));
    // Also when drawing failed: then it may fail too, and what drawing met is told.
    let restored = ratatui::try_restore();
    lived.and(restored).map_err(no_terminal)
}

/// One page, or one object.
fn print_once(context: &Context) -> Result<(), Failure> {
    let snapshot = Snapshot::fetch(&mut context.connect()?)?;
    if context.json {
        return output::print_json(&snapshot);
    }
    let mut text = String::new();
    for line in page::whole(&snapshot, PLAIN_COLUMNS) {
        let line: String = line.spans.iter().map(|span| span.content.as_ref()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    output::print(&text)
}

/// An object a line, until nobody reads them.
fn print_lines(context: Context, interval: Duration) -> Result<(), Failure> {
    let news = feed::start(context, interval)?;
    let mut is_there = true;
    while let Ok(news) = news.recv() {
        match &news {
            Ok(snapshot) => output::print_json(snapshot)?,
            Err(failure) if is_there => eprintln!("{}", output::printable(&not_reachable(failure))),
            Err(_) => {}
        }
        is_there = news.is_ok();
    }
    Err(Failure::Failed("the thread that looks at the daemon has ended".into()))
}

/// What is at the terminal.
struct Live {
    interval: Duration,
    choices: Choices,
    snapshot: Option<Snapshot>,
    trouble: Option<String>,
    /// When the last news came.
    heard: Instant,
}

impl Live {
    fn new(interval: Duration) -> Self {
        let trouble = Some("asking the daemon".into());
        Self { interval, choices: Choices::default(), snapshot: None, trouble, heard: clock::now() }
    }

    /// Draws until a key or a signal ends it.
    fn run(
        mut self,
        terminal: &mut DefaultTerminal,
        news: &Receiver<News>,
        ended: &AtomicBool,
    ) -> io::Result<()> {
        while !ended.load(Ordering::Relaxed) {
            terminal.draw(|frame| self.draw(frame))?;
            // A key, another size of the terminal, or a moment.
            if event::poll(KEY_PERIOD)?
                && let Event::Key(key) = event::read()?
                && self.choices.key(key)
            {
                break;
            }
            match news.try_recv() {
                Ok(news) => self.take(news, clock::now()),
                Err(TryRecvError::Empty) => self.wait(clock::now()),
                Err(TryRecvError::Disconnected) => {
                    return Err(io::Error::other("the thread that looks at the daemon has ended"));
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, news: News, now: Instant) {
        self.heard = now;
        match news {
            Ok(snapshot) => {
                self.trouble = page::fault(&snapshot.status);
                self.snapshot = Some(snapshot);
            }
            Err(failure) => self.trouble = Some(not_reachable(&failure)),
        }
    }

    /// Nothing came. What is shown may be stale.
    fn wait(&mut self, now: Instant) {
        let silence = now.duration_since(self.heard);
        if silence > STALE_INTERVALS * self.interval {
            self.trouble = Some(format!("no answer for {} s", silence.as_secs()));
        }
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        if let Some(Snapshot { queue, .. }) = &self.snapshot {
            self.choices.keep_within(queue.running.len(), queue.waiting.len());
        }
        let view = View {
            snapshot: self.snapshot.as_ref(),
            trouble: self.trouble.as_deref(),
            choices: self.choices,
        };
        let area = frame.area();
        let lines = page::page(&view, area.width.into(), area.height.into());
        frame.render_widget(Paragraph::new(Text::from(lines)), area);
    }
}

fn not_reachable(failure: &Failure) -> String {
    format!("not reachable, trying again: {failure}")
}

/// A flag that SIGTERM, SIGHUP and SIGINT set. No handler runs in signal context: they are blocked and a thread waits.
fn watch_signals() -> Result<Arc<AtomicBool>, Failure> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        set.add(signal);
    }
    set.thread_block().map_err(|error| Failure::Failed(format!("cannot block signals: {error}")))?;
    let ended = Arc::new(AtomicBool::new(false));
    let flag = ended.clone();
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if set.wait().is_ok() {
                flag.store(true, Ordering::Relaxed);
            }
        })
        .map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?;
    Ok(ended)
}
