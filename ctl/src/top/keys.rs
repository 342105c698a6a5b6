//! What keys do: choose a list, scroll it, leave.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// Lines that Page Up and Page Down move.
const PAGE: usize = 10;

/// One of the two lists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Pane {
    /// Jobs that run.
    #[default]
    Running,
    /// Jobs that wait.
    Waiting,
}

/// What the user has chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Choices {
    /// The list that is scrolled.
    pub(crate) pane: Pane,
    /// First line shown of the jobs that run.
    pub(crate) running_from: usize,
    /// First line shown of the jobs that wait.
    pub(crate) waiting_from: usize,
}

impl Choices {
    /// Takes a key; true: leave.
    pub(crate) fn key(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return false;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return true,
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Tab | KeyCode::BackTab | KeyCode::Left | KeyCode::Right => {
                self.pane = match self.pane {
                    Pane::Running => Pane::Waiting,
                    Pane::Waiting => Pane::Running,
                }
            }
            KeyCode::Up => self.scroll(|from| from.saturating_sub(1)),
            KeyCode::Down => self.scroll(|from| from + 1),
            KeyCode::PageUp => self.scroll(|from| from.saturating_sub(PAGE)),
            KeyCode::PageDown => self.scroll(|from| from + PAGE),
            KeyCode::Home => self.scroll(|_| 0),
            KeyCode::End => self.scroll(|_| usize::MAX / 2),
            _ => {}
        }
        false
    }

    /// Keeps the lists from being scrolled past their ends, as long as they are now.
    pub(crate) fn keep_within(&mut self, running: usize, waiting: usize) {
        self.running_from = self.running_from.min(running.saturating_sub(1));
        self.waiting_from = self.waiting_from.min(waiting.saturating_sub(1));
    }

    fn scroll(&mut self, to: impl Fn(usize) -> usize) {
        let from = match self.pane {
            Pane::Running => &mut self.running_from,
            Pane::Waiting => &mut self.waiting_from,
        };
        *from = to(*from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_choose_scroll_and_leave() {
        let mut choices = Choices::default();
        let mut press = |code| choices.key(KeyEvent::new(code, KeyModifiers::NONE));
        for code in
            [KeyCode::Down, KeyCode::Down, KeyCode::Up, KeyCode::Tab, KeyCode::PageDown, KeyCode::Char('x')]
        {
            assert!(!press(code), "{code:?}");
        }
        assert!(press(KeyCode::Char('q')) && press(KeyCode::Esc) && !press(KeyCode::Char('c')));
        assert!(choices.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert_eq!(choices, Choices { pane: Pane::Waiting, running_from: 1, waiting_from: 10 });
        choices.keep_within(1, 4);
        assert_eq!((choices.running_from, choices.waiting_from), (0, 3));
        choices.key(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
        choices.keep_within(0, 0);
        assert_eq!((choices.running_from, choices.waiting_from), (0, 0));
        choices.key(KeyEvent::new(KeyCode::Up, KeyModifiers::NONE));
        let released = KeyEvent::new_with_kind(KeyCode::Char('q'), KeyModifiers::NONE, KeyEventKind::Release);
        assert!(!choices.key(released));
        assert_eq!((choices.pane, choices.waiting_from), (Pane::Waiting, 0));
    }
}
