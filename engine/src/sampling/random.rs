//! The random number at a position: Philox4x32-10, a counter-based generator, so that there is no state to keep.
//!
//! Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The key is the seed,
//! the counter is the position and the stream: what the number is for, so that two choices at one position are apart.

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

/// What a random number is for. The numbers are part of what a seed means: they never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    /// Which token is drawn.
    Draw = 0,
    /// Whether XTC leaves tokens out.
    Xtc = 1,
    /// The seed of one of several answers; its number stands in the position's place.
    Choice = 2,
}

/// 64 uniform random bits for `position` of the sequence with `seed`: those that draw its token.
pub fn random_u64(seed: u64, position: u64) -> u64 {
    random_stream_u64(seed, position, Stream::Draw)
}

/// 64 uniform random bits, others for each stream.
pub(super) fn random_stream_u64(seed: u64, position: u64, stream: Stream) -> u64 {
    let counter = [position as u32, (position >> 32) as u32, stream as u32, 0];
    let [low, high, _, _] = philox(counter, [seed as u32, (seed >> 32) as u32]);
    u64::from(high) << 32 | u64::from(low)
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let even = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let odd = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (odd >> 32) as u32 ^ counter[1] ^ key[0],
            odd as u32,
            (even >> 32) as u32 ^ counter[3] ^ key[1],
            even as u32,
        ];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::{Stream, philox, random_stream_u64, random_u64};

    #[test]
    fn philox_gives_the_published_vectors() {
        // Known answers of the authors' Random123 library (philox4x32, 10 rounds).
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn seed_position_and_stream_all_count() {
        assert_eq!(random_u64(0, 0), 0xe169_c58d_6627_e8d5);
        let draws = [
            random_u64(0, 0),
            random_u64(1, 0),
            random_u64(0, 1),
            random_u64(1 << 32, 0),
            random_u64(0, 1 << 32),
            random_stream_u64(0, 0, Stream::Xtc),
            random_stream_u64(0, 0, Stream::Choice),
        ];
        for (index, draw) in draws.iter().enumerate() {
            assert!(!draws[..index].contains(draw));
        }
    }
}
