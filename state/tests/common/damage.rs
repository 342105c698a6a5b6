//! Bytes of a file change: what is read is right or refused, never wrong.

use crate::random::Random;

/// Whether a changed file was refused, at once or when it was used; an error is a wrong answer.
pub(crate) type Used = Result<bool, String>;

/// One bit is another: in each third case anywhere, in a page that holds something, or near the front.
pub(crate) fn change_bits(image: &[u8], cases: u64, used: impl Fn(Vec<u8>) -> Used) {
    assert_eq!(used(image.to_vec()), Ok(false));
    // Pages that are used have a kind in front; the others are free and nobody reads them.
    let pages: Vec<_> = (0..image.len()).step_by(4096).filter(|at| matches!(image[*at], 1 | 2)).collect();
    let (mut random, mut unharmed, mut refused) = (Random::new(5), 0, 0);
    for case in 0..cases {
        let at = match case % 3 {
            0 => random.below(image.len() as u64) as usize,
            1 => pages[random.below(pages.len() as u64) as usize] + random.below(4096) as usize,
            _ => random.below(8192) as usize,
        };
        let mut changed = image.to_vec();
        changed[at] ^= 1 << random.below(8);
        match used(changed).unwrap_or_else(|wrong| panic!("byte {at}: {wrong}")) {
            false => unharmed += 1,
            true => refused += 1,
        }
    }
    println!("{unharmed} unharmed, {refused} refused");
    assert!(unharmed > 50 && refused > 50, "{unharmed} unharmed, {refused} refused");
}

/// The file was cut off, as by a copy that did not end.
pub(crate) fn cut_off(image: &[u8], used: impl Fn(Vec<u8>) -> Used) {
    let mut refused = 0;
    for length in (4096..image.len()).step_by(image.len() / 40) {
        let used = used(image[..length].to_vec());
        refused += u32::from(used.unwrap_or_else(|wrong| panic!("{length} bytes: {wrong}")));
    }
    assert!(refused > 20, "{refused}");
}
