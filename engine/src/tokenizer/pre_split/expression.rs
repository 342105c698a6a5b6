//! The regular expressions of pre-tokenizers, matched in linear time.
//!
//! The engine has just what those expressions need: a rule is a sequence of character sets, each repeated greedily,
//! perhaps a group at its end, and perhaps `$` or `(?!\S)` behind all. Rules are tried in their order, as the
//! alternatives of a backtracking engine. Parsing is left to `regex-syntax`, with its Unicode tables.
//!
//! Characters are told apart only as far as some set of the whole scheme does: each has one of at most 64 classes, and
//! a set is a mask of classes.

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look, Repetition};

/// Of a rule: "and nothing but the end or a space follows". The parser does not know it.
const NO_WORD_FOLLOWS: &str = r"(?!\S)";
const NOT_A_SPACE: &str = r"\S";

/// A set of classes of characters: a bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Set(u64);

/// Which class each code point has.
pub(super) struct Classes(Box<[u8]>);

/// The sets of characters of a scheme, and the classes that they divide all characters into.
pub(super) struct Sets {
    sets: Vec<ClassUnicode>,
    masks: Vec<Set>,
}

impl Sets {
    /// Divides the characters by the sets of all `expressions`, which are from our own tables.
    pub(super) fn new<'e>(expressions: impl Iterator<Item = &'e str>) -> (Self, Classes) {
        let mut sets = vec![];
        for expression in expressions {
            let (body, _) = strip_look(expression);
            collect(&parse(body), &mut sets);
        }
        let not_a_space = as_set(&parse(NOT_A_SPACE)).expect("a set");
        collect_set(not_a_space, &mut sets);
        let (masks, classes) = divide(&sets);
        (Self { sets, masks }, classes)
    }

    /// The mask of one set, which was among the expressions.
    pub(super) fn mask(&self, expression: &str) -> Set {
        self.mask_of(&as_set(&parse(expression)).expect("an expression of one set"))
    }

    fn mask_of(&self, set: &ClassUnicode) -> Set {
        self.masks[self.sets.iter().position(|other| other == set).expect("every set was collected")]
    }
}

/// The expression as it is parsed, and whether [`NO_WORD_FOLLOWS`] is to hold behind it.
fn strip_look(expression: &str) -> (&str, bool) {
    match expression.strip_suffix(NO_WORD_FOLLOWS) {
        Some(body) => (body, true),
        None => (expression, false),
    }
}

fn parse(expression: &str) -> Hir {
    regex_syntax::parse(expression).unwrap_or_else(|e| panic!("a rule of our own tables: {e}"))
}

/// The set that `hir` is, if it is a single character of some set.
fn as_set(hir: &Hir) -> Option<ClassUnicode> {
    match hir.kind() {
        HirKind::Class(Class::Unicode(set)) => Some(set.clone()),
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).expect("expressions are Unicode");
            let mut chars = text.chars();
            chars.next().filter(|_| chars.next().is_none()).map(one)
        }
        HirKind::Capture(capture) => as_set(&capture.sub),
        _ => None,
    }
}

fn one(c: char) -> ClassUnicode {
    ClassUnicode::new([ClassUnicodeRange::new(c, c)])
}

fn collect_set(set: ClassUnicode, sets: &mut Vec<ClassUnicode>) {
    if !sets.contains(&set) {
        sets.push(set);
    }
}

fn collect(hir: &Hir, sets: &mut Vec<ClassUnicode>) {
    match hir.kind() {
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).expect("expressions are Unicode");
            text.chars().for_each(|c| collect_set(one(c), sets));
        }
        HirKind::Class(Class::Unicode(set)) => collect_set(set.clone(), sets),
        HirKind::Repetition(repetition) => collect(&repetition.sub, sets),
        HirKind::Capture(capture) => collect(&capture.sub, sets),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().for_each(|part| collect(part, sets));
        }
        HirKind::Empty | HirKind::Look(_) | HirKind::Class(Class::Bytes(_)) => {}
    }
}

/// The masks of `sets`, and the classes of all characters: two have the same class if they are in the same sets.
fn divide(sets: &[ClassUnicode]) -> (Vec<Set>, Classes) {
    assert!(sets.len() <= 128, "a scheme has a few sets");
    let ranges = |set: &ClassUnicode| -> Vec<(u32, u32)> {
        set.iter().map(|range| (range.start() as u32, range.end() as u32 + 1)).collect()
    };
    let mut borders: Vec<u32> = sets.iter().flat_map(ranges).flat_map(|(start, end)| [start, end]).collect();
    borders.extend([0, char::MAX as u32 + 1]);
    borders.sort_unstable();
    borders.dedup();
    // For each stretch between two borders, which sets hold it.
    let mut members = vec![0u128; borders.len() - 1];
    for (index, set) in sets.iter().enumerate() {
        for (start, end) in ranges(set) {
            let at = |border| borders.binary_search(&border).expect("every end is a border");
            members[at(start)..at(end)].iter_mut().for_each(|stretch| *stretch |= 1 << index);
        }
    }
    let mut kinds: Vec<u128> = vec![];
    let mut classes = vec![0u8; char::MAX as usize + 1].into_boxed_slice();
    for (stretch, member) in members.iter().enumerate() {
        let class = kinds.iter().position(|kind| kind == member).unwrap_or_else(|| {
            kinds.push(*member);
            kinds.len() - 1
        });
        classes[borders[stretch] as usize..borders[stretch + 1] as usize].fill(class as u8);
    }
    assert!(kinds.len() <= 64, "a mask has a bit for each class");
    let mask = |index: usize| {
        let held = kinds.iter().enumerate().filter(|(_, kind)| **kind >> index & 1 == 1);
        Set(held.fold(0, |mask, (class, _)| mask | 1 << class))
    };
    ((0..sets.len()).map(mask).collect(), Classes(classes))
}

/// A part of a rule.
#[derive(Debug)]
enum Node {
    /// `min` to `max` characters of `set`, as many as possible.
    Chars { set: Set, min: u32, max: u32 },
    /// The first of `alternatives` that matches, `min` to `max` times. Only at the end of a sequence, so it never has
    /// to give back what it took.
    Group { alternatives: Box<[Box<[Node]>]>, min: u32, max: u32 },
    /// No character of this set follows.
    Not(Set),
    /// The end of the text.
    End,
}

/// The alternatives of one expression.
pub(super) struct Expression {
    rules: Box<[Box<[Node]>]>,
    /// Of an expression that is one rule that begins with `X+`: where it does not match at the first character of a run
    /// of X, it matches at none of them, for all that it could match there ends where it could have ended here.
    run: Option<Set>,
}

impl Expression {
    /// Compiles `rules`, which are from our own tables and were given to `sets`.
    pub(super) fn new(rules: &[&str], sets: &Sets) -> Self {
        let compile_rule = |rule: &&str| {
            let (body, no_word_follows) = strip_look(rule);
            let mut nodes = vec![];
            compile(&parse(body), sets, &mut nodes);
            if no_word_follows {
                nodes.push(Node::Not(sets.mask(NOT_A_SPACE)));
            }
            let groups = nodes.iter().rev().skip(1).filter(|node| matches!(node, Node::Group { .. }));
            assert_eq!(groups.count(), 0, "{rule}: a group stands at the end");
            nodes.into_boxed_slice()
        };
        let rules: Box<[Box<[Node]>]> = rules.iter().map(compile_rule).collect();
        let run = match &*rules {
            [rule] => match rule.first() {
                Some(&Node::Chars { set, min: 0 | 1, max: u32::MAX }) => Some(set),
                _ => None,
            },
            _ => None,
        };
        Self { rules, run }
    }

    /// The next match in `text` from `start` on, as its two ends. No match is empty.
    pub(super) fn find(&self, text: &Text<'_>, start: usize) -> Option<(usize, usize)> {
        let mut at = start;
        while at < text.text.len() {
            let ends = self.rules.iter().find_map(|rule| text.sequence(rule, at).filter(|&end| end > at));
            if let Some(end) = ends {
                return Some((at, end));
            }
            at = match self.run.map(|set| text.run(set, at, u32::MAX).0) {
                Some(end) if end > at => end,
                _ => text.after(at),
            };
        }
        None
    }
}

fn compile(hir: &Hir, sets: &Sets, nodes: &mut Vec<Node>) {
    match hir.kind() {
        HirKind::Empty => {}
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).expect("expressions are Unicode");
            nodes.extend(text.chars().map(|c| Node::Chars { set: sets.mask_of(&one(c)), min: 1, max: 1 }));
        }
        HirKind::Class(Class::Unicode(set)) => {
            nodes.push(Node::Chars { set: sets.mask_of(set), min: 1, max: 1 });
        }
        HirKind::Repetition(repetition) => nodes.push(compile_repetition(repetition, sets)),
        HirKind::Capture(capture) => compile(&capture.sub, sets, nodes),
        HirKind::Concat(parts) => parts.iter().for_each(|part| compile(part, sets, nodes)),
        HirKind::Alternation(_) => {
            nodes.push(Node::Group { alternatives: alternatives(hir, sets), min: 1, max: 1 });
        }
        HirKind::Look(Look::End) => nodes.push(Node::End),
        HirKind::Look(look) => panic!("{look:?} is in none of our tables"),
        HirKind::Class(Class::Bytes(_)) => panic!("expressions are Unicode"),
    }
}

fn compile_repetition(repetition: &Repetition, sets: &Sets) -> Node {
    let (min, max) = (repetition.min, repetition.max.unwrap_or(u32::MAX));
    assert!(repetition.greedy, "our tables have greedy repetitions only");
    match as_set(&repetition.sub) {
        Some(set) => Node::Chars { set: sets.mask_of(&set), min, max },
        None => Node::Group { alternatives: alternatives(&repetition.sub, sets), min, max },
    }
}

fn alternatives(hir: &Hir, sets: &Sets) -> Box<[Box<[Node]>]> {
    let sequence = |hir: &Hir| {
        let mut nodes = vec![];
        compile(hir, sets, &mut nodes);
        nodes.into_boxed_slice()
    };
    match hir.kind() {
        HirKind::Alternation(parts) => parts.iter().map(sequence).collect(),
        HirKind::Capture(capture) => alternatives(&capture.sub, sets),
        _ => [sequence(hir)].into(),
    }
}

/// A text and the classes of its characters. All positions are in bytes, and between characters.
pub(super) struct Text<'a> {
    pub(super) text: &'a str,
    pub(super) classes: &'a Classes,
}

impl Text<'_> {
    /// The class of the character at `at` as a mask, and the position after it.
    fn class_at(&self, at: usize) -> Option<(u64, usize)> {
        let byte = *self.text.as_bytes().get(at)?;
        if byte < 0x80 {
            return Some((1 << self.classes.0[usize::from(byte)], at + 1));
        }
        let c = self.text[at..].chars().next()?;
        Some((1 << self.classes.0[c as usize], at + c.len_utf8()))
    }

    /// The position after the character at `at`.
    pub(super) fn after(&self, at: usize) -> usize {
        self.class_at(at).map_or(at, |(_, after)| after)
    }

    fn before(&self, mut at: usize) -> usize {
        at -= 1;
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        at
    }

    /// Whether the character at `at` is in `set`; the end of the text is in none.
    pub(super) fn holds(&self, set: Set, at: usize) -> bool {
        self.class_at(at).is_some_and(|(class, _)| class & set.0 != 0)
    }

    /// Where the characters of `set` that begin at `at` end, and how many there are; at most `max`.
    pub(super) fn run(&self, set: Set, mut at: usize, max: u32) -> (usize, u32) {
        let mut count = 0;
        while count < max {
            match self.class_at(at) {
                Some((class, after)) if class & set.0 != 0 => (at, count) = (after, count + 1),
                _ => break,
            }
        }
        (at, count)
    }

    /// Where `nodes` end that begin at `at`, if they match there.
    fn sequence(&self, nodes: &[Node], at: usize) -> Option<usize> {
        let Some((node, rest)) = nodes.split_first() else { return Some(at) };
        match node {
            Node::Not(set) if self.holds(*set, at) => None,
            Node::End if at < self.text.len() => None,
            Node::Not(_) | Node::End => self.sequence(rest, at),
            &Node::Chars { set, min, max } => {
                let (mut end, mut count) = self.run(set, at, max);
                loop {
                    if count < min {
                        return None;
                    }
                    if let Some(end) = self.sequence(rest, end) {
                        return Some(end);
                    }
                    count = count.checked_sub(1)?;
                    end = self.before(end);
                }
            }
            Node::Group { alternatives, min, max } => {
                debug_assert!(rest.is_empty());
                let (mut end, mut count) = (at, 0);
                while count < *max
                    && let Some(next) = alternatives.iter().find_map(|nodes| self.sequence(nodes, end))
                    && next > end
                {
                    (end, count) = (next, count + 1);
                }
                (count >= *min).then_some(end)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All matches of `rules` in `text`.
    fn matches<'t>(rules: &[&str], text: &'t str) -> Vec<&'t str> {
        let (sets, classes) = Sets::new(rules.iter().copied());
        let expression = Expression::new(rules, &sets);
        let classified = Text { text, classes: &classes };
        let mut found = vec![];
        let mut at = 0;
        while let Some((start, end)) = expression.find(&classified, at) {
            found.push(&text[start..end]);
            at = end;
        }
        found
    }

    #[test]
    fn the_first_rule_that_matches_is_taken_and_takes_all_it_can() {
        assert_eq!(matches(&["ab", "a+", "b"], "aab abb"), ["aa", "b", "ab", "b"]);
        assert_eq!(matches(&[r"\p{N}{1,3}"], "1234,½²٣Ⅷ"), ["123", "4", "½²٣", "Ⅷ"]);
        assert_eq!(matches(&[r"[\p{Lu}\p{Lo}]*[\p{Ll}\p{Lo}]+"], "AB字CdE字FG"), ["AB字Cd", "E字"]);
    }

    #[test]
    fn a_run_gives_back_where_what_follows_needs_it() {
        assert_eq!(matches(&[r"\s*[\r\n]+"], "a \n b"), [" \n"]);
        assert_eq!(matches(&[r"\s+(?!\S)", r"\s+"], "a   b  "), ["  ", " ", "  "]);
        assert_eq!(matches(&[r"\s+$"], "  a   "), ["   "]);
        assert_eq!(matches(&[r"\s{2}(?!\S)"], "    a"), ["  "]);
    }

    #[test]
    fn groups_are_optional_or_repeated() {
        let words = [r"[a-z]+(?:'[sS]|'[lL][lL])?", "'"];
        assert_eq!(matches(&words, "it's he'LL o'x"), ["it's", "he'LL", "o", "'", "x"]);
        assert_eq!(matches(&[r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"], "a b  c d"), ["a b", "c d"]);
        assert_eq!(matches(&["(IMG)((A|B){1,2})Z"], "IMGABZ IMGABAZ IMGZ"), ["IMGABZ"]);
    }

    #[test]
    fn a_class_is_for_those_that_no_set_tells_apart() {
        let (sets, classes) = Sets::new([r"\p{L}+", r"[\p{L}\p{M}]", "'"].into_iter());
        let text = Text { text: "aé字", classes: &classes };
        let class = text.class_at(0).map(|(class, _)| class);
        assert!([1, 3].iter().all(|&at| text.class_at(at).map(|(class, _)| class) == class));
        assert!(text.holds(sets.mask(r"\p{L}"), 1) && !text.holds(sets.mask("'"), 1));
    }
}
