//! A frame that announces more than it has does not make the decoder ask for that memory. Alone in its process
//! and on its main thread, because the process's peak of virtual memory is what is measured, and a thread of its own
//! begins with an arena that would hide it.

use std::{fs, hint::black_box, io::Cursor};
use zllm_wire::limits::{LENGTH_BYTES, MAX_DECODED_BYTES, MAX_FRAME_BYTES};
use zllm_wire::*;

/// What the decoder may ask for beyond what it was sent: bincode reserves a string's announced length if it is
/// within the limit, serde reserves 1 MiB of a list, and the allocator rounds up.
const ALLOWED_BYTES: usize = MAX_DECODED_BYTES + (4 << 20);

fn peak_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmPeak:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// A frame whose last item is a list that announces `items` and has none, for the variant path `head`.
fn hostile(head: &[u8], items: u64) -> Vec<u8> {
    let mut body = vec![VERSION];
    body.extend_from_slice(head);
    body.push(253); // bincode: a u64 follows
    body.extend_from_slice(&items.to_le_bytes());
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    frame
}

fn main() {
    let lists: [(&str, &[u8]); 6] = [
        ("hello's client", &[0, VERSION]),
        ("load's model", &[1, 1, 1]),
        ("prompt's tokens", &[1, 1, 3, 1, b'm', 2]),
        ("models", &[2, 1, 2]),
        ("tokens", &[2, 1, 12]),
        ("jobs of a batch", &[2, 1, 20]),
    ];
    let before = peak_bytes();
    for (name, head) in lists {
        for items in [2 << 20, 15 << 20, u64::from(u32::MAX), u64::MAX / 2, u64::MAX] {
            let frame = hostile(head, items);
            let client = decode::<ClientFrame>(&frame).is_err();
            let server = decode::<ServerFrame>(&frame).is_err();
            assert!(client && server, "{name} with {items} announced items");
        }
    }
    let mut prefix = (MAX_FRAME_BYTES as u32).to_le_bytes().to_vec();
    prefix.extend_from_slice(&[VERSION; 16]);
    let mut decoder = FrameDecoder::new();
    decoder.push(&prefix);
    assert!(matches!(decoder.pop::<Op>(), Ok(None)));
    let got = read_frame::<Op>(&mut Cursor::new(&prefix));
    assert!(matches!(got, Err(WireError::Truncated { have, need })
        if have == prefix.len() && need == LENGTH_BYTES + MAX_FRAME_BYTES));
    let grown = peak_bytes() - before;
    assert!(grown < ALLOWED_BYTES, "grew by {grown} bytes");

    // The canary: what is asked for is seen by this measure.
    let asked: Vec<u8> = black_box(Vec::with_capacity(64 << 20));
    assert!(peak_bytes() - before > ALLOWED_BYTES, "{} bytes not seen", asked.capacity());
}
