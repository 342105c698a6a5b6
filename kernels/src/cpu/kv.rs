//! The paged KV cache: formats, the layout of a block, and the arena that holds the blocks.
//!
//! A block is the KV of 64 tokens for all layers, contiguous: one copy moves, swaps or sends it. Inside, layers follow one
//! another; a layer is one region a KV head; a region is four K groups, then four V groups, of 16 tokens each. Codes
//! of a group lie as the kernels read them, whole 64-byte vectors in address order (u = 2 codes of i16, 1 of f16):
//! * K: `[dim / u][16 tokens][u]`, then for I16 `[16]` f32 scales;
//! * V: `[dim / 16][16 / u token groups][16 dims][u]`, then for I16 `[16]` f32 scales.
//!
//! The bytes are in this machine's order and belong to this layout: a fingerprint of stored blocks must name both.

use super::buffer::AlignedBuffer;

/// Tokens of a block.
pub const BLOCK_TOKENS: usize = 64;
/// Tokens of a group, the atom of the layout: the lanes of a vector.
pub(crate) const GROUP_TOKENS: usize = 16;
/// Groups of a block.
pub(crate) const BLOCK_GROUPS: usize = BLOCK_TOKENS / GROUP_TOKENS;
/// Largest head dimension.
pub const MAX_HEAD_DIM: usize = 256;

/// How K and V are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// i16 codes with one f32 scale a token and head; exact integer products. The default: fastest and most accurate.
    I16,
    /// IEEE half floats with f32 products. Values beyond 65504 poison what sees them (see `attention`).
    F16,
}

impl KvFormat {
    /// The name used in configuration, fingerprints and `--kv-format`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::I16 => "i16",
            Self::F16 => "f16",
        }
    }

    /// Bytes of the codes and scales of one group of one head with `dim` dimensions.
    const fn group_bytes(self, dim: usize) -> usize {
        let scales = match self {
            Self::I16 => GROUP_TOKENS * size_of::<f32>(),
            Self::F16 => 0,
        };
        GROUP_TOKENS * dim * size_of::<u16>() + scales
    }
}

impl std::fmt::Display for KvFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for KvFormat {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "i16" => Ok(Self::I16),
            "f16" => Ok(Self::F16),
            _ => Err(format!("unknown KV format {s:?}: i16 or f16")),
        }
    }
}

/// What a layer caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// KV heads.
    pub kv_heads: usize,
    /// Dimensions of a K head: a multiple of 16, at most [`MAX_HEAD_DIM`].
    pub k_dim: usize,
    /// Dimensions of a V head: likewise.
    pub v_dim: usize,
}

/// Where a layer lies in a block. Offsets and sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerPlace {
    pub(crate) layer: KvLayer,
    pub(crate) k_group_bytes: usize,
    pub(crate) v_group_bytes: usize,
    offset: usize,
}

impl LayerPlace {
    fn head_offset(&self, head: usize) -> usize {
        self.offset + head * BLOCK_GROUPS * (self.k_group_bytes + self.v_group_bytes)
    }

    /// Offset in the block of K group `group` (0..4) of KV head `head`.
    pub(crate) fn k_offset(&self, head: usize, group: usize) -> usize {
        self.head_offset(head) + group * self.k_group_bytes
    }

    /// Offset in the block of V group `group` (0..4) of KV head `head`.
    pub(crate) fn v_offset(&self, head: usize, group: usize) -> usize {
        self.head_offset(head) + BLOCK_GROUPS * self.k_group_bytes + group * self.v_group_bytes
    }
}

/// The layout of a block of one model.
#[derive(Clone, Debug)]
pub struct KvLayout {
    format: KvFormat,
    places: Vec<LayerPlace>,
    block_bytes: usize,
}

impl KvLayout {
    /// The layout of blocks that hold `layers`, in order.
    ///
    /// # Panics
    /// When there is no layer, or a head's dimension is not a multiple of 16 from 16 to 256, or a layer has no head.
    pub fn new(format: KvFormat, layers: &[KvLayer]) -> Self {
        assert!(!layers.is_empty(), "a KV block without layers");
        let mut block_bytes = 0;
        let places = layers
            .iter()
            .map(|&layer| {
                for dim in [layer.k_dim, layer.v_dim] {
                    let fits = (16..=MAX_HEAD_DIM).contains(&dim) && dim.is_multiple_of(16);
                    assert!(fits, "head dimension {dim}: multiples of 16 up to {MAX_HEAD_DIM} work");
                }
                assert!(layer.kv_heads > 0, "a KV layer without heads");
                let (k, v) = (format.group_bytes(layer.k_dim), format.group_bytes(layer.v_dim));
                let place = LayerPlace { layer, k_group_bytes: k, v_group_bytes: v, offset: block_bytes };
                block_bytes = place.head_offset(layer.kv_heads);
                place
            })
            .collect();
        Self { format, places, block_bytes }
    }

    /// How K and V are kept.
    pub fn format(&self) -> KvFormat {
        self.format
    }

    /// Layers of a block.
    pub fn layers(&self) -> usize {
        self.places.len()
    }

    /// What layer `index` caches.
    pub fn layer(&self, index: usize) -> KvLayer {
        self.places[index].layer
    }

    /// Bytes of a block: a multiple of 64.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    pub(crate) fn place(&self, layer: usize) -> &LayerPlace {
        &self.places[layer]
    }
}

/// The blocks of a device, numbered from 0. Who uses which block is the owner's business.
#[derive(Debug)]
pub struct KvArena {
    layout: KvLayout,
    blocks: usize,
    bytes: AlignedBuffer<u8>,
}

impl KvArena {
    /// `blocks` blocks. Their content needs no initialisation: nothing is read that was not appended.
    ///
    /// # Panics
    /// When the size overflows or `blocks` is more than a block id can say.
    pub fn new(layout: KvLayout, blocks: usize) -> Self {
        assert!(blocks < u32::MAX as usize, "{blocks} KV blocks: ids are 32 bits");
        let bytes = blocks.checked_mul(layout.block_bytes()).expect("the KV arena's size overflows");
        Self { layout, blocks, bytes: AlignedBuffer::zeroed(bytes) }
    }

    /// The layout of its blocks.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    fn range(&self, id: u32) -> std::ops::Range<usize> {
        assert!((id as usize) < self.blocks, "KV block {id} of {}", self.blocks);
        let start = id as usize * self.layout.block_bytes;
        start..start + self.layout.block_bytes
    }

    /// The bytes of block `id`.
    pub fn block(&self, id: u32) -> &[u8] {
        &self.bytes[self.range(id)]
    }

    /// The bytes of block `id`, to be overwritten with bytes that a block of the same layout had.
    pub fn block_mut(&mut self, id: u32) -> &mut [u8] {
        let range = self.range(id);
        &mut self.bytes[range]
    }

    /// Copies block `from` over block `to`.
    pub fn copy_block(&mut self, from: u32, to: u32) {
        let (from, to) = (self.range(from), self.range(to));
        self.bytes.copy_within(from, to.start);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_tile_the_block_without_gap_or_overlap() {
        for format in [KvFormat::I16, KvFormat::F16] {
            let layers = [
                KvLayer { kv_heads: 2, k_dim: 64, v_dim: 64 },
                KvLayer { kv_heads: 1, k_dim: 256, v_dim: 16 },
                KvLayer { kv_heads: 3, k_dim: 80, v_dim: 112 },
            ];
            let layout = KvLayout::new(format, &layers);
            let mut at = 0;
            for (index, layer) in layers.iter().enumerate() {
                let place = layout.place(index);
                for head in 0..layer.kv_heads {
                    for group in 0..BLOCK_GROUPS {
                        assert_eq!(place.k_offset(head, group), at);
                        at += place.k_group_bytes;
                    }
                    for group in 0..BLOCK_GROUPS {
                        assert_eq!(place.v_offset(head, group), at);
                        at += place.v_group_bytes;
                    }
                }
            }
            assert_eq!(layout.block_bytes(), at);
            assert_eq!(at % 64, 0);
        }
        // 264 bytes a token and head of 64 dimensions.
        let one = KvLayout::new(KvFormat::I16, &[KvLayer { kv_heads: 1, k_dim: 64, v_dim: 64 }]);
        assert_eq!(one.block_bytes(), 264 * BLOCK_TOKENS);
    }

    #[test]
    fn blocks_are_separate_and_copied_whole() {
        let layout = KvLayout::new(KvFormat::F16, &[KvLayer { kv_heads: 1, k_dim: 16, v_dim: 16 }]);
        let mut arena = KvArena::new(layout, 3);
        arena.block_mut(1).fill(7);
        arena.copy_block(1, 2);
        assert!(arena.block(0).iter().all(|&b| b == 0));
        assert!(arena.block(2).iter().all(|&b| b == 7));
    }

    #[test]
    fn format_names_parse_back() {
        for format in [KvFormat::I16, KvFormat::F16] {
            assert_eq!(format.name().parse(), Ok(format));
        }
        assert!("q8".parse::<KvFormat>().is_err());
    }
}
