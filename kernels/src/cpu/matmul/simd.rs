//! What an instruction set must offer for the tiles of [`super::tile`]. One thin file each implements it.
//!
//! Not the `Simd` of `cpu::simd`: here a vector is a register of the machine, as wide as it is, for a lane is an output row
//! and a tile is planned by registers; there sixteen lanes are part of the order in which numbers are summed. What the two
//! share is a handful of float operations of one instruction each.
//!
//! Methods must be inlined into a function that has the instruction set's target features enabled: as calls of their own they
//! would be wrong in calling convention and slow. Hence `#[inline(always)]` on every one of them and on every generic above.

use crate::blocks::BlockFormat;

/// Vectors of an instruction set: `LANES` rows of a group each.
///
/// # Safety
/// All methods: the machine has the instruction set; pointers cover a vector (or what the method says).
pub(super) trait Simd: Copy {
    /// Rows in a vector of ints or floats.
    const LANES: usize;
    /// Most rows of activations in a tile of two vectors.
    const TILE_ROWS: usize;
    /// From how many rows of activations on it pays to decode a group of mixed bits to bytes first (measured).
    const ROWS_TO_DECODE: usize;
    /// Whether codes of offset 128 are multiplied as signed numbers, so that their offset is not corrected for.
    const SIGNED_BYTES: bool;

    /// Four unsigned codes a lane, or four signed activations in every lane.
    type Codes: Copy;
    /// One i32 a lane.
    type Ints: Copy;
    /// Sums on their way to `Ints`.
    type Partial: Copy;
    /// One f32 a lane.
    type Floats: Copy;
    /// One byte a lane.
    type LaneBytes: Copy;

    /// Loads codes.
    unsafe fn load_codes(from: *const u8) -> Self::Codes;
    /// Stores codes.
    unsafe fn store_codes(to: *mut u8, codes: Self::Codes);
    /// Moves bit `from` of each byte to bit `to` and keeps the bits of `mask`, all of which must come out of the same byte.
    unsafe fn bits(codes: Self::Codes, from: usize, to: usize, mask: u8) -> Self::Codes;
    /// Adds [`Self::bits`] of `high` to codes that have none of them.
    unsafe fn or_bits(codes: Self::Codes, high: Self::Codes, from: usize, to: usize, mask: u8)
    -> Self::Codes;
    /// Adds 16 to each nibble whose bit is set; a bit for each byte of a vector at `bits`.
    unsafe fn add_fifth_bits(nibbles: Self::Codes, bits: *const u8) -> Self::Codes;

    /// The ternary digit of each byte that the power of 3 moves to the front ([`super::codes::Digits`]).
    unsafe fn digit(codes: Self::Codes, power: i16) -> Self::Codes;
    /// The byte of a table of sixteen that each code (0-15) chooses.
    unsafe fn look_up(table: &[u8; 16], codes: Self::Codes) -> Self::Codes;

    /// Decodes units to a panel of as many blocks ([`super::panel`], [`super::grid_panel`]).
    unsafe fn decode_units(format: BlockFormat, units: &[u8], panel: &mut [u32]);

    /// Four activations at `from`, in every lane.
    unsafe fn four_activations(from: *const i8) -> Self::Codes;
    /// The same int in every lane.
    unsafe fn ints(value: i32) -> Self::Ints;
    /// No sums.
    unsafe fn no_partial() -> Self::Partial;
    /// Adds the products of codes and activations; must be followed by `settle` after every
    /// [`Self::quads_between_settles`] of them. `signed` says that the codes' offset is 128.
    unsafe fn dot(
        ints: &mut Self::Ints,
        partial: &mut Self::Partial,
        signed: bool,
        codes: Self::Codes,
        activations: Self::Codes,
    );
    /// Moves partial sums to the ints.
    unsafe fn settle(ints: &mut Self::Ints, partial: &mut Self::Partial);
    /// How many `dot`s the partial sums hold for codes of at most `largest`: a power of two.
    fn quads_between_settles(largest: usize) -> usize;

    /// The same float in every lane.
    unsafe fn floats(value: f32) -> Self::Floats;
    /// Loads f32.
    unsafe fn load_floats(from: *const f32) -> Self::Floats;
    /// Stores f32.
    unsafe fn store_floats(to: *mut f32, value: Self::Floats);
    /// Loads f16.
    unsafe fn load_halves(from: *const u8) -> Self::Floats;
    /// Loads bf16.
    unsafe fn load_bfloats(from: *const u8) -> Self::Floats;
    /// Ints to floats.
    unsafe fn to_floats(ints: Self::Ints) -> Self::Floats;
    /// a * b
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// a * b + c, rounded once
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Loads one byte a lane.
    unsafe fn load_lane_bytes(from: *const u8) -> Self::LaneBytes;
    /// As [`Self::bits`].
    unsafe fn lane_bits(bytes: Self::LaneBytes, from: usize, to: usize, mask: u8) -> Self::LaneBytes;
    /// The bits of both.
    unsafe fn lane_or(a: Self::LaneBytes, b: Self::LaneBytes) -> Self::LaneBytes;
    /// Each byte less a number.
    unsafe fn lane_subtract(bytes: Self::LaneBytes, number: i8) -> Self::LaneBytes;
    /// Unsigned lane bytes as floats.
    unsafe fn unsigned_bytes(bytes: Self::LaneBytes) -> Self::Floats;
    /// Signed lane bytes as floats.
    unsafe fn signed_bytes(bytes: Self::LaneBytes) -> Self::Floats;
    /// As [`crate::blocks::half_of_power`].
    unsafe fn halves_of_powers(exponents: Self::LaneBytes) -> Self::Floats;
    /// As [`crate::blocks::half_of_small_float`].
    unsafe fn halves_of_small_floats(bits: Self::LaneBytes) -> Self::Floats;
}
