//! Byte-level BPE (`tokenizer.ggml.model` is `gpt2`): words are split into bytes, and neighbours that the model's list
//! of merges knows are joined, the earliest merge of the list first.
//!
//! A byte without a token, which some vocabularies have, gives nothing.

use hashbrown::HashMap;

use super::{
    byte_alphabet::char_of,
    error::VocabularyFault,
    merge::{Merge, Merger, NONE},
    pre_split::{Scheme, Splitter},
    vocabulary::Vocabulary,
};

/// The merges of a model and how its texts are split before.
pub(super) struct BytePairs {
    pub(super) scheme: &'static Scheme,
    splitter: Splitter,
    /// The token of each byte, or [`NONE`].
    byte_ids: Box<[u32; 256]>,
    /// What two neighbouring tokens become.
    merges: HashMap<(u32, u32), Merge>,
}

impl BytePairs {
    /// Builds the table of merges from the list in the file: two parts with a space between them.
    pub(super) fn new<'a>(
        vocabulary: &Vocabulary,
        list: impl ExactSizeIterator<Item = &'a [u8]>,
        scheme: &'static Scheme,
    ) -> Result<Self, VocabularyFault> {
        let mut buffer = [0; 4];
        let byte_ids = Box::new(std::array::from_fn(|byte| {
            let text = char_of(byte as u8).encode_utf8(&mut buffer);
            vocabulary.find(text.as_bytes()).unwrap_or(NONE)
        }));
        let mut merges = HashMap::with_capacity(list.len());
        let mut joined = vec![];
        let mut last = 0;
        for (index, merge) in list.enumerate() {
            let name = || String::from_utf8_lossy(merge).into_owned();
            // A space can be the first part's first character, never its second.
            let space = merge.iter().skip(1).position(|&b| b == b' ').map(|at| at + 1);
            let space = space.ok_or_else(|| VocabularyFault::MergeForm { index, merge: name() })?;
            let (left, right) = (&merge[..space], &merge[space + 1..]);
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            let find = |part: &[u8]| {
                let part_name = || String::from_utf8_lossy(part).into_owned();
                vocabulary.find(part).ok_or_else(|| VocabularyFault::Merge {
                    index,
                    merge: name(),
                    part: part_name(),
                })
            };
            // Most lists are in the order of the tokens that they make: the next one is looked at before it is looked up.
            let id = vocabulary.find_at(&joined, last + 1).map_or_else(|| find(&joined), Ok)?;
            last = id;
            merges.entry((find(left)?, find(right)?)).or_insert(Merge { priority: index as u32, id });
        }
        Ok(Self { scheme, splitter: Splitter::new(scheme), byte_ids, merges })
    }

    /// Appends the tokens of `text`, which holds no special token.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) {
        let mut merger = Merger::default();
        let mut letters = String::new();
        self.splitter.split(text, &mut |word| {
            if self.scheme.whole_words {
                letters.clear();
                letters.extend(word.bytes().map(char_of));
                if let Some(id) = vocabulary.find(letters.as_bytes()) {
                    return out.push(id);
                }
            }
            merger.clear();
            for byte in word.bytes() {
                merger.push(1, self.byte_ids[usize::from(byte)]);
            }
            merger.merge(|left, right| self.merges.get(&(left.id, right.id)).copied());
            out.extend(merger.symbols().map(|symbol| symbol.id).filter(|&id| id != NONE));
        });
    }
}
