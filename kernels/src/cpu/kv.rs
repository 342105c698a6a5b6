//! The paged KV cache: formats, the layout of a block, and the arena that holds the blocks.
//!
//! A block is the KV of 64 tokens for all layers, contiguous: one copy moves, swaps or sends it. Inside, layers follow one
//! another; a layer is one region a KV head; a region is four K groups, then four V groups, of 16 tokens each. Codes
//! of a group lie as the kernels read them, whole vectors in address order (u = 2 codes of i16 or i8, 1 of f16):
//! * K: `[dim / u][16 tokens][u]`, then the scales;
//! * V: `[dim / 16][16 / u token groups][16 dims][u]`, then the scales.
//!
//! Scales: I16 `[16]` f32; Q8G64 `[ceil(dim / 64)][16]` f16; F16 none.
//!
//! The bytes are in this machine's order and belong to this layout: [`LAYOUT`] names both, and the fingerprint of stored
//! blocks has it.

use nix::sys::resource::{Resource, getrlimit};

use super::buffer::AlignedBuffer;
use crate::backend::{DeviceError, KV_BLOCK_TOKENS, KvCodec, KvFormat, KvLayer};

/// The layout above, by a number that is raised with every change of it, and the byte order.
pub const LAYOUT: &str =
    if cfg!(target_endian = "little") { "cpu 1 little-endian" } else { "cpu 1 big-endian" };

/// Tokens of a group, the atom of the layout: the lanes of a vector.
pub(crate) const GROUP_TOKENS: usize = 16;
/// Groups of a block.
pub(crate) const BLOCK_GROUPS: usize = KV_BLOCK_TOKENS / GROUP_TOKENS;
/// Largest head dimension.
pub const MAX_HEAD_DIM: usize = 256;

/// Dimensions that share a scale in Q8G64.
pub(crate) const Q8_GROUP_DIMS: usize = 64;

/// Bytes of the codes and scales of one group of one head with `dim` dimensions: a multiple of 32.
const fn group_bytes(codec: KvCodec, dim: usize) -> usize {
    let token = match codec {
        KvCodec::I16 => dim * size_of::<i16>() + size_of::<f32>(),
        KvCodec::F16 => dim * size_of::<u16>(),
        KvCodec::Q8G64 => dim + dim.div_ceil(Q8_GROUP_DIMS) * size_of::<u16>(),
    };
    GROUP_TOKENS * token
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
    /// # Errors
    /// There is no layer, a layer has no head, or a head's dimension is not a multiple of 16 from 16 to 256.
    pub fn new(format: KvFormat, layers: &[KvLayer]) -> Result<Self, DeviceError> {
        if layers.is_empty() {
            return Err(unsupported("KV layers", 0, "a model has at least 1"));
        }
        let mut block_bytes = 0;
        let mut places = Vec::with_capacity(layers.len());
        for &layer in layers {
            for (what, dim) in [("key head dimension", layer.k_dim), ("value head dimension", layer.v_dim)] {
                if !(16..=MAX_HEAD_DIM).contains(&dim) || !dim.is_multiple_of(16) {
                    return Err(unsupported(what, dim, "multiples of 16 from 16 to 256 are"));
                }
            }
            if layer.kv_heads == 0 {
                return Err(unsupported("KV heads of a layer", 0, "a layer has at least 1"));
            }
            let (k, v) = (group_bytes(format.keys, layer.k_dim), group_bytes(format.values, layer.v_dim));
            let place = LayerPlace { layer, k_group_bytes: k, v_group_bytes: v, offset: block_bytes };
            block_bytes = place.head_offset(layer.kv_heads);
            places.push(place);
        }
        Ok(Self { format, places, block_bytes })
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

fn unsupported(what: &str, found: usize, expected: &'static str) -> DeviceError {
    DeviceError::UnsupportedShape { what: what.to_owned(), found, backend: super::NAME, expected }
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
    /// # Errors
    /// There is no memory for them.
    ///
    /// # Panics
    /// When the size overflows or `blocks` is more than a block id can say.
    pub fn new(layout: KvLayout, blocks: usize) -> Result<Self, DeviceError> {
        assert!(blocks < u32::MAX as usize, "{blocks} KV blocks: ids are 32 bits");
        let bytes = blocks.checked_mul(layout.block_bytes()).expect("the KV arena's size overflows");
        let out_of_memory = DeviceError::OutOfMemory { what: "keys and values", bytes, backend: super::NAME };
        Ok(Self { layout, blocks, bytes: AlignedBuffer::try_zeroed(bytes).ok_or(out_of_memory)? })
    }

    /// Keeps all blocks in memory, also those that were never used.
    ///
    /// # Errors
    /// The system refuses, most often because of its limit for locked memory.
    pub fn lock(&mut self) -> Result<(), DeviceError> {
        let bytes = self.bytes.len();
        self.bytes.lock().map_err(|errno| {
            let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft);
            DeviceError::NotLocked { bytes, reason: errno.desc(), limit, backend: super::NAME }
        })
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
        for format in KvFormat::all() {
            let layers = [
                KvLayer { kv_heads: 2, k_dim: 64, v_dim: 64 },
                KvLayer { kv_heads: 1, k_dim: 256, v_dim: 16 },
                KvLayer { kv_heads: 3, k_dim: 80, v_dim: 112 },
            ];
            let layout = KvLayout::new(format, &layers).expect("supported heads");
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
        // Bytes a token and head of 64 dimensions, K and V.
        let layer = KvLayer { kv_heads: 1, k_dim: 64, v_dim: 64 };
        for (format, bytes) in [("i16", 264), ("f16", 256), ("q8g64", 132), ("i16/q8g64", 198)] {
            let format = format.parse().expect("a known format");
            let layout = KvLayout::new(format, &[layer]).expect("supported heads");
            assert_eq!(layout.block_bytes(), bytes * KV_BLOCK_TOKENS, "{format}");
        }
    }

    #[test]
    fn blocks_are_separate_and_copied_whole() {
        let layer = KvLayer { kv_heads: 1, k_dim: 16, v_dim: 16 };
        let layout = KvLayout::new(KvFormat::F16, &[layer]).expect("supported heads");
        let mut arena = KvArena::new(layout, 3).expect("a few bytes");
        arena.block_mut(1).fill(7);
        arena.copy_block(1, 2);
        assert!(arena.block(0).iter().all(|&b| b == 0));
        assert!(arena.block(2).iter().all(|&b| b == 7));
    }

    #[test]
    fn an_arena_beyond_memory_is_refused_by_its_size() {
        let layer = KvLayer { kv_heads: 64, k_dim: 16, v_dim: 16 };
        let layout = KvLayout::new(KvFormat::F16, &[layer]).expect("supported heads");
        // More than 48-bit addresses reach, so that a system that promises any amount refuses too.
        let bytes = layout.block_bytes() << 31;
        assert!(bytes > 1 << 48);
        let error = KvArena::new(layout, 1 << 31).expect_err("nobody has that much");
        assert_eq!(error, DeviceError::OutOfMemory { what: "keys and values", bytes, backend: "cpu" });
    }

    /// Bytes of this process that are locked.
    #[cfg(target_os = "linux")]
    fn locked_bytes() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).expect("Linux says it");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_locked_arena_stays_in_memory_until_it_goes() {
        let layer = KvLayer { kv_heads: 1, k_dim: 16, v_dim: 16 };
        let layout = KvLayout::new(KvFormat::F16, &[layer]).expect("supported heads");
        let mut arena = KvArena::new(layout, 8).expect("a few bytes");
        let before = locked_bytes();
        arena.lock().expect("less than any system's limit");
        assert!(locked_bytes() >= before + arena.bytes().len(), "locked");
        drop(arena);
        assert_eq!(locked_bytes(), before);
    }

    #[test]
    fn a_lock_that_is_refused_names_the_limit() {
        let backend = super::super::NAME;
        let refused = DeviceError::NotLocked { bytes: 1 << 30, reason: "no", limit: 8 << 20, backend };
        let message = refused.to_string();
        assert!(message.contains("1073741824") && message.contains("8388608"), "{message}");
        assert!(message.contains("RLIMIT_MEMLOCK"), "{message}");
    }

    #[test]
    fn heads_that_no_kernel_serves_are_refused_by_name() {
        let refusal = |kv_heads, k_dim, v_dim| {
            let layer = KvLayer { kv_heads, k_dim, v_dim };
            KvLayout::new(KvFormat::I16, &[layer]).expect_err("no kernel serves it").to_string()
        };
        for dim in [0, 8, 72, 272] {
            assert!(refusal(1, dim, 64).starts_with(&format!("key head dimension: {dim} ")));
            assert!(refusal(1, 64, dim).starts_with(&format!("value head dimension: {dim} ")));
        }
        assert!(refusal(0, 64, 64).starts_with("KV heads of a layer: 0 "));
        assert!(KvLayout::new(KvFormat::I16, &[]).is_err());
    }
}
