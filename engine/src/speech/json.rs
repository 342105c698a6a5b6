//! One JSON value (RFC 8259), a character at a time: what is no beginning of a value is found at the first character that
//! is wrong.
//!
//! Stricter than the grammar in one thing: a surrogate stands in a pair, since the value would else be no text.

/// The text goes on as no JSON value does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// White space between JSON's tokens.
pub(super) fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\n' | '\r' | '\t')
}

/// What a character was within a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InString {
    /// Part of an escape whose end has not come.
    Escape,
    /// The end of this character of the string.
    Char(char),
    /// The closing quote.
    End,
}

/// A string after its opening quote.
#[derive(Debug, Clone, Default)]
pub(super) struct StringReader {
    escape: Escape,
    /// The first half of a surrogate pair.
    high: Option<u16>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Escape {
    #[default]
    None,
    /// After the backslash.
    Begun,
    /// After `\u` and so many digits, fewer than four.
    Hex { digits: u8, unit: u16 },
}

impl StringReader {
    /// Whether what came may be cut here: no escape is open and no half of a pair waits for the other.
    pub(super) fn is_whole(&self) -> bool {
        self.escape == Escape::None && self.high.is_none()
    }

    pub(super) fn push(&mut self, c: char) -> Result<InString, Malformed> {
        match std::mem::take(&mut self.escape) {
            Escape::None => match c {
                '\\' => self.escape = Escape::Begun,
                _ if self.high.is_some() || c < ' ' => return Err(Malformed),
                '"' => return Ok(InString::End),
                _ => return Ok(InString::Char(c)),
            },
            Escape::Begun if c == 'u' => self.escape = Escape::Hex { digits: 0, unit: 0 },
            Escape::Begun if self.high.is_none() => return escaped(c).map(InString::Char).ok_or(Malformed),
            Escape::Begun => return Err(Malformed),
            Escape::Hex { digits, unit } => {
                let digit = c.to_digit(16).ok_or(Malformed)?;
                let unit = unit << 4 | digit as u16;
                if digits < 3 {
                    self.escape = Escape::Hex { digits: digits + 1, unit };
                } else if self.high.is_none() && (0xD800..0xDC00).contains(&unit) {
                    self.high = Some(unit);
                } else {
                    let units = self.high.take().into_iter().chain([unit]);
                    let decoded = char::decode_utf16(units).next().and_then(Result::ok);
                    return decoded.map(InString::Char).ok_or(Malformed);
                }
            }
        }
        Ok(InString::Escape)
    }
}

/// What a letter after a backslash stands for.
fn escaped(c: char) -> Option<char> {
    Some(match c {
        '"' | '\\' | '/' => c,
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        _ => return None,
    })
}

/// What a character was for the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Part of it.
    More,
    /// Its last.
    Last,
    /// Not part of it: the value had ended before, as a number does.
    Past,
}

/// A value as far as it came. It begins with its first character, not with blanks before it.
#[derive(Debug, Clone)]
pub(super) struct Json {
    /// The containers that are open, outermost first.
    open: Vec<Container>,
    at: At,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    Array,
    Object,
}

/// What may come next.
#[derive(Debug, Clone)]
enum At {
    Value,
    /// A value, or the end of the array that has just begun.
    FirstItem,
    /// A key, or the end of the object that has just begun.
    FirstKey,
    Key,
    Colon,
    /// A comma, or the container's end.
    Next,
    InKey(StringReader),
    InString(StringReader),
    InNumber(Number),
    /// What is missing of `true`, `false` or `null`.
    InWord(&'static str),
    End,
}

#[derive(Debug, Clone, Copy)]
enum Number {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

impl Json {
    pub(super) fn new() -> Self {
        Self { open: Vec::new(), at: At::Value }
    }

    /// A string of which `reader` has read the beginning.
    pub(super) fn in_string(reader: StringReader) -> Self {
        Self { open: Vec::new(), at: At::InString(reader) }
    }

    pub(super) fn is_complete(&self) -> bool {
        matches!(self.at, At::End)
    }

    /// Whether what came may be cut here: never within an escape.
    pub(super) fn is_whole(&self) -> bool {
        match &self.at {
            At::InKey(reader) | At::InString(reader) => reader.is_whole(),
            _ => true,
        }
    }

    pub(super) fn push(&mut self, c: char) -> Result<Step, Malformed> {
        match &mut self.at {
            At::InKey(reader) => {
                if reader.push(c)? == InString::End {
                    self.at = At::Colon;
                }
            }
            At::InString(reader) => {
                if reader.push(c)? == InString::End {
                    return Ok(self.end_value());
                }
            }
            At::InWord(rest) => {
                *rest = rest.strip_prefix(c).ok_or(Malformed)?;
                if rest.is_empty() {
                    return Ok(self.end_value());
                }
            }
            At::InNumber(number) => match number.push(c) {
                Some(next) => *number = next,
                None if !number.may_end() => return Err(Malformed),
                None => {
                    return match self.end_value() {
                        Step::Last => Ok(Step::Past),
                        _ => self.push(c),
                    };
                }
            },
            At::End if is_blank(c) => return Ok(Step::Past),
            At::End => return Err(Malformed),
            At::Value if self.open.is_empty() => self.begin_value(c)?,
            _ if is_blank(c) => {}
            _ => return self.push_token(c),
        }
        Ok(Step::More)
    }

    /// Between two tokens within a container.
    fn push_token(&mut self, c: char) -> Result<Step, Malformed> {
        let container = self.open.last().copied();
        match (&self.at, container, c) {
            (At::FirstItem | At::Next, Some(Container::Array), ']')
            | (At::FirstKey | At::Next, Some(Container::Object), '}') => {
                self.open.pop();
                return Ok(self.end_value());
            }
            (At::Next, Some(Container::Array), ',') | (At::Colon, _, ':') => self.at = At::Value,
            (At::Next, Some(Container::Object), ',') => self.at = At::Key,
            (At::FirstKey | At::Key, _, '"') => self.at = At::InKey(StringReader::default()),
            (At::Value | At::FirstItem, ..) => self.begin_value(c)?,
            _ => return Err(Malformed),
        }
        Ok(Step::More)
    }

    fn begin_value(&mut self, c: char) -> Result<(), Malformed> {
        self.at = match c {
            '{' => {
                self.open.push(Container::Object);
                At::FirstKey
            }
            '[' => {
                self.open.push(Container::Array);
                At::FirstItem
            }
            '"' => At::InString(StringReader::default()),
            't' => At::InWord("rue"),
            'f' => At::InWord("alse"),
            'n' => At::InWord("ull"),
            '-' => At::InNumber(Number::Minus),
            '0' => At::InNumber(Number::Zero),
            '1'..='9' => At::InNumber(Number::Integer),
            _ => return Err(Malformed),
        };
        Ok(())
    }

    fn end_value(&mut self) -> Step {
        if self.open.is_empty() {
            self.at = At::End;
            Step::Last
        } else {
            self.at = At::Next;
            Step::More
        }
    }
}

impl Number {
    /// What the number is after `c`; `None` if `c` is not part of it.
    fn push(self, c: char) -> Option<Self> {
        Some(match (self, c) {
            (Self::Minus, '0') => Self::Zero,
            (Self::Minus, '1'..='9') | (Self::Integer, '0'..='9') => Self::Integer,
            (Self::Zero | Self::Integer, '.') => Self::Point,
            (Self::Point | Self::Fraction, '0'..='9') => Self::Fraction,
            (Self::Zero | Self::Integer | Self::Fraction, 'e' | 'E') => Self::E,
            (Self::E, '+' | '-') => Self::Sign,
            (Self::E | Self::Sign | Self::Exponent, '0'..='9') => Self::Exponent,
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Integer | Self::Fraction | Self::Exponent)
    }
}
