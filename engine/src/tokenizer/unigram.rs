//! SentencePiece by likelihood (`tokenizer.ggml.model` is `t5`): of all ways to write a text as tokens, the one with the
//! highest sum of scores. A character without a token counts as the worst token and a penalty.
//!
//! Where no token reaches across a place, the best way to it is final, and is given out: memory stays small. Time is
//! linear in the text, times the longest token at worst.
//!
//! Source: `llm_tokenizer_ugm` in llama.cpp's `llama-vocab.cpp`, and SentencePiece's `unigram_model.cc` and
//! `normalizer.cc` where they differ: only SentencePiece has byte tokens, and strips a text's leading spaces where no
//! space is put before it.

use super::{
    charsmap::CharsMap,
    error::VocabularyFault,
    merge::NONE,
    sentence_pieces::SPACE,
    vocabulary::{TokenKind, Vocabulary},
};

/// What an unknown character costs more than the worst token, in log probability.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The scores of a model, and how its texts are normalised.
pub(super) struct Unigram {
    /// The log probability of each token, as the search counts it.
    scores: Box<[f32]>,
    trie: Trie,
    unknown: u32,
    unknown_score: f32,
    /// The token of each byte, in vocabularies that have them all.
    byte_ids: Option<Box<[u32; 256]>>,
    charsmap: Option<CharsMap>,
    spaces: Spaces,
}

/// What is done to spaces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spaces {
    /// One is put before a text, and before what follows a special token.
    pub(super) add_prefix: bool,
    /// Those at either end go, and of several in a row one is left.
    pub(super) remove_extra: bool,
}

/// The best way to a place in the text: its last token.
#[derive(Clone, Copy)]
struct Way {
    /// Of all tokens from the text's beginning.
    score: f64,
    /// Where the last token begins.
    start: usize,
    /// The last token, or [`NONE`] where the place was not reached.
    id: u32,
}

impl Unigram {
    /// `scores` has one for each token of `vocabulary`.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        scores: impl ExactSizeIterator<Item = f32>,
        unknown: u32,
        charsmap: Option<CharsMap>,
        spaces: Spaces,
    ) -> Result<Self, VocabularyFault> {
        assert_eq!(scores.len(), vocabulary.len(), "one score for each token");
        let mut scores: Box<[f32]> = scores.collect();
        if let Some(id) = scores.iter().position(|score| score.is_nan()) {
            return Err(VocabularyFault::Score { id });
        }
        let (mut worst, mut words) = (f32::MAX, vec![]);
        for (id, kind) in vocabulary.kinds() {
            let score = &mut scores[id as usize];
            match kind {
                TokenKind::Normal => worst = worst.min(*score),
                TokenKind::UserDefined => *score = 0.0,
                TokenKind::Unused => {}
                TokenKind::Unknown | TokenKind::Control | TokenKind::Byte => continue,
            }
            words.push((vocabulary.text(id).as_bytes(), id));
        }
        let byte_id = |byte: usize| {
            let id = vocabulary.find(format!("<0x{byte:02X}>").as_bytes());
            id.filter(|&id| vocabulary.kind(id) == TokenKind::Byte).unwrap_or(NONE)
        };
        let byte_ids = Box::new(std::array::from_fn(byte_id));
        Ok(Self {
            scores,
            trie: Trie::new(words),
            unknown,
            unknown_score: worst - UNKNOWN_PENALTY,
            byte_ids: Some(byte_ids).filter(|ids| !ids.contains(&NONE)),
            charsmap,
            spaces,
        })
    }

    /// Whether a space is put before a text.
    pub(super) fn add_space_prefix(&self) -> bool {
        self.spaces.add_prefix
    }

    /// Appends the tokens of `text`, which holds no special token.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let text = self.normalize(text);
        let unreached = Way { score: 0.0, start: 0, id: NONE };
        // The ways to `begin` and the places after it; all before is given out.
        let (mut begin, mut ways) = (0, vec![unreached]);
        let mut at = 0;
        let mut last = None;
        while let Some(c) = text[at..].chars().next() {
            if at > begin && ways.len() == at - begin + 1 {
                self.give_out(&text, begin, &ways, &mut last, out);
                ways.drain(..at - begin);
                begin = at;
            }
            let here = ways[at - begin].score;
            let mut consider = |end: usize, id: u32, score: f32| {
                if ways.len() <= end - begin {
                    ways.resize(end - begin + 1, unreached);
                }
                let (way, score) = (&mut ways[end - begin], here + f64::from(score));
                if way.id == NONE || score > way.score {
                    *way = Way { score, start: at, id };
                }
            };
            let after = at + c.len_utf8();
            let mut has_token = false;
            self.trie.prefixes(&text.as_bytes()[at..], |len, id| {
                has_token |= at + len == after;
                consider(at + len, id, self.scores[id as usize]);
            });
            if !has_token {
                consider(after, self.unknown, self.unknown_score);
            }
            at = after;
        }
        self.give_out(&text, begin, &ways, &mut last, out);
    }

    /// Appends the tokens of the best way to the last place of `ways`, which begin at `begin`. Unknown characters side
    /// by side are one token; `last` is the token before.
    fn give_out(&self, text: &str, begin: usize, ways: &[Way], last: &mut Option<u32>, out: &mut Vec<u32>) {
        let mut tokens = vec![];
        let mut end = begin + ways.len() - 1;
        while end > begin {
            let Way { start, id, .. } = ways[end - begin];
            tokens.push((start, end, id));
            end = start;
        }
        for (start, end, id) in tokens.into_iter().rev() {
            match &self.byte_ids {
                Some(ids) if id == self.unknown => {
                    out.extend(text[start..end].bytes().map(|byte| ids[usize::from(byte)]));
                }
                _ if id == self.unknown && *last == Some(id) => {}
                _ => out.push(id),
            }
            *last = Some(id);
        }
    }

    /// The text as the model's tokens write it.
    fn normalize(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + text.len() / 4 + SPACE.len_utf8());
        let Spaces { add_prefix, remove_extra } = self.spaces;
        // Where extra spaces go, one is due before the next word.
        let mut due = add_prefix;
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let found = self.charsmap.as_ref().and_then(|map| map.longest(rest));
            let (len, replacement) = found.unwrap_or((c.len_utf8(), &rest[..c.len_utf8()]));
            for c in replacement.chars() {
                match c {
                    ' ' if remove_extra => due |= !out.is_empty(),
                    ' ' => {
                        out.extend(due.then_some(SPACE));
                        due = false;
                        out.push(SPACE);
                    }
                    _ => {
                        out.extend(due.then_some(SPACE));
                        due = false;
                        out.push(c);
                    }
                }
            }
            rest = &rest[len..];
        }
        out
    }
}

/// Finds which of many words a text begins with.
struct Trie(Vec<TrieNode>);

struct TrieNode {
    /// The byte that leads here.
    byte: u8,
    /// The word that ends here, or [`NONE`].
    id: u32,
    /// The nodes after this one, side by side in the order of their bytes.
    first_child: u32,
    children: u16,
}

impl Trie {
    /// Of equal words the one with the highest id is found.
    fn new(mut words: Vec<(&[u8], u32)>) -> Self {
        words.sort_unstable();
        let mut nodes = vec![TrieNode { byte: 0, id: NONE, first_child: 0, children: 0 }];
        // The words that begin as each node does, and how long that beginning is.
        let mut ranges = vec![(0..words.len(), 0)];
        let mut node = 0;
        while node < nodes.len() {
            let (range, depth) = ranges[node].clone();
            nodes[node].first_child = nodes.len() as u32;
            let ended = words[range.clone()].partition_point(|(word, _)| word.len() == depth);
            if ended > 0 && depth > 0 {
                nodes[node].id = words[range.start + ended - 1].1;
            }
            let mut start = range.start + ended;
            while start < range.end {
                let byte = words[start].0[depth];
                let same = words[start..range.end].partition_point(|(word, _)| word[depth] == byte);
                nodes.push(TrieNode { byte, id: NONE, first_child: 0, children: 0 });
                ranges.push((start..start + same, depth + 1));
                nodes[node].children += 1;
                start += same;
            }
            node += 1;
        }
        Self(nodes)
    }

    /// Calls `found` with the length and the id of each word that `text` begins with, the shortest first.
    fn prefixes(&self, text: &[u8], mut found: impl FnMut(usize, u32)) {
        let mut node = &self.0[0];
        for (i, byte) in text.iter().enumerate() {
            let children = &self.0[node.first_child as usize..][..usize::from(node.children)];
            let Ok(child) = children.binary_search_by_key(byte, |child| child.byte) else { return };
            node = &children[child];
            if node.id != NONE {
                found(i + 1, node.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_words_that_a_text_begins_with_are_found() {
        let words: [(&[u8], u32); 6] = [(b"ab", 1), (b"a", 2), (b"abcd", 3), (b"b", 4), (b"ab", 5), (b"", 6)];
        let trie = Trie::new(words.to_vec());
        let mut found = vec![];
        trie.prefixes(b"abcx", |len, id| found.push((len, id)));
        assert_eq!(found, [(1, 2), (2, 5)]);
        trie.prefixes(b"", |_, _| panic!("no word"));
    }
}
