//! What the machine can do at most: memory reads and integer products of registers, all threads together.

#![allow(clippy::disallowed_methods, reason = "a benchmark is what the clock is for")]

use std::time::Instant;

use zllm_kernels::cpu::pool::Pool;

/// What no cache holds.
pub(crate) const FROM_MEMORY_BYTES: usize = 150 << 20;
const REPEATS: usize = 5;

/// The best of a few.
pub(crate) fn best_seconds(mut run: impl FnMut()) -> f64 {
    let mut timed = || {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..REPEATS).map(|_| timed()).fold(f64::INFINITY, f64::min)
}

/// GB/s at which all threads together read memory in order.
pub(crate) fn memory_gb_per_s(pool: &Pool) -> f64 {
    let words = vec![1u64; FROM_MEMORY_BYTES / 8];
    let seconds = best_seconds(|| {
        pool.split_in_order(words.len() / 8192, 4, &|range, _| {
            let part = &words[range.start * 8192..range.end * 8192];
            let mut sums = [0u64; 32];
            for chunk in part.as_chunks::<32>().0 {
                sums.iter_mut().zip(chunk).for_each(|(s, w)| *s = s.wrapping_add(*w));
            }
            std::hint::black_box(sums);
        });
    });
    FROM_MEMORY_BYTES as f64 / seconds / 1e9
}

/// GMAC/s of 512-bit `vpdpbusd` on registers alone; `None` on a machine without it.
pub(crate) fn vpdpbusd_gmac_per_s(pool: &Pool) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    if zllm_kernels::cpu::isa::Isa::Avx512.is_supported() {
        const ROUNDS: usize = 4_000_000;
        const MACS_A_ROUND: usize = 12 * 64;
        // SAFETY: the machine has AVX-512 VNNI.
        let seconds = best_seconds(|| pool.run(&|_| unsafe { vnni_rounds(ROUNDS) }));
        return Some((pool.threads() * ROUNDS * MACS_A_ROUND) as f64 / seconds / 1e9);
    }
    let _ = pool;
    None
}

/// Twelve independent sums, enough to hide the instruction's latency.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
fn vnni_rounds(rounds: usize) {
    // SAFETY: registers alone, all named as clobbered.
    unsafe {
        std::arch::asm!(
            "2:",
            "vpdpbusd zmm0, zmm14, zmm15", "vpdpbusd zmm1, zmm14, zmm15", "vpdpbusd zmm2, zmm14, zmm15",
            "vpdpbusd zmm3, zmm14, zmm15", "vpdpbusd zmm4, zmm14, zmm15", "vpdpbusd zmm5, zmm14, zmm15",
            "vpdpbusd zmm6, zmm14, zmm15", "vpdpbusd zmm7, zmm14, zmm15", "vpdpbusd zmm8, zmm14, zmm15",
            "vpdpbusd zmm9, zmm14, zmm15", "vpdpbusd zmm10, zmm14, zmm15", "vpdpbusd zmm11, zmm14, zmm15",
            "dec {rounds}",
            "jnz 2b",
            rounds = inout(reg) rounds => _,
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
            out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
            out("zmm14") _, out("zmm15") _,
            options(nomem, nostack),
        );
    }
}
