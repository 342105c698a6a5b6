//! A weight matrix in the packed layout of [`super::layout`]: made once at load, then only read.

use super::{
    arena::{Place, WeightArena},
    grid,
    layout::{self, BLOCK_COLS, Format, GROUP_ROWS, QUADS, with_format},
    pack,
    transpose::Plain,
};
use crate::{
    backend::WeightSource,
    blocks::{self, BlockFormat},
    cpu::{isa::Isa, pool::Pool, share::Shared},
};

/// Bytes that a thread packs at a time: they stay in its cache until they are released, and where a matrix ends, no thread
/// waits long for the other.
const PIECE_BYTES: usize = 128 << 10;

/// Why a matrix cannot be packed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PackError {
    /// Columns do not fill whole blocks.
    #[error("{cols} columns are not a whole number of {format} blocks of {block}", block = format.block_len())]
    PartialBlock {
        /// the format
        format: BlockFormat,
        /// columns asked for
        cols: usize,
    },
    /// The matrix has no rows or no columns.
    #[error("a {rows} x {cols} matrix holds nothing")]
    Empty {
        /// rows asked for
        rows: usize,
        /// columns asked for
        cols: usize,
    },
    /// The bytes are not those of the matrix.
    #[error("a {rows} x {cols} {format} matrix does not have {bytes} bytes")]
    WrongSize {
        /// the format
        format: BlockFormat,
        /// rows asked for
        rows: usize,
        /// columns asked for
        cols: usize,
        /// bytes given
        bytes: usize,
    },
    /// The system has no memory for them.
    #[error("no {bytes} bytes for a {rows} x {cols} {format} matrix")]
    OutOfMemory {
        /// the format
        format: BlockFormat,
        /// rows asked for
        rows: usize,
        /// columns asked for
        cols: usize,
        /// bytes of all matrices that are packed together
        bytes: usize,
    },
}

/// A matrix of `rows` outputs by `cols` inputs. The layout is the same for every instruction set.
pub struct PackedWeight {
    format: BlockFormat,
    rows: usize,
    cols: usize,
    group_bytes: usize,
    place: Place,
}

impl PackedWeight {
    /// Packs a matrix from its file bytes (`rows` rows of `cols` weights, one after another).
    ///
    /// # Errors
    /// `bytes` are not such a matrix.
    ///
    /// # Panics
    /// The machine does not have `isa`.
    pub fn pack(
        pool: &Pool,
        isa: Isa,
        format: BlockFormat,
        rows: usize,
        cols: usize,
        bytes: &[u8],
    ) -> Result<Self, PackError> {
        let source = WeightSource { name: "", format, rows, cols, bytes, release: &|_| {} };
        let arena = &mut WeightArena::default();
        let mut packed = Self::pack_all(pool, isa, arena, &[source]).map_err(|(_, error)| error)?;
        Ok(packed.pop().expect("a matrix for each source"))
    }

    /// Packs matrices of one format and shape, one after another in `arena`, in one piece of work. Calls each source's
    /// `release` with each range of its bytes as soon as it is not needed any more, from any thread, so that the caller can
    /// give the file's pages back and the peak stays at one copy.
    ///
    /// # Errors
    /// Which source is no such matrix; there is no memory for them.
    ///
    /// # Panics
    /// Sources are not of one format and shape, or the machine does not have `isa`.
    pub fn pack_all(
        pool: &Pool,
        isa: Isa,
        arena: &mut WeightArena,
        sources: &[WeightSource<'_>],
    ) -> Result<Vec<Self>, (usize, PackError)> {
        assert!(isa.is_supported(), "this machine does not have {}", isa.name());
        let Some(first) = sources.first() else { return Ok(vec![]) };
        let &WeightSource { format, rows, cols, .. } = first;
        let Sizes { row_bytes, group_bytes, matrix_bytes, all_bytes } = sizes(sources)?;
        let group_count = rows.div_ceil(GROUP_ROWS);
        let out_of_memory = PackError::OutOfMemory { format, rows, cols, bytes: all_bytes };
        let mut place = arena.take(all_bytes).ok_or((0, out_of_memory))?;
        let out = Shared::new(place.bytes_mut());
        let grain = PIECE_BYTES.div_ceil(group_bytes);
        pool.split(group_count * sources.len(), grain, &|piece, _| {
            // SAFETY: pieces do not overlap, and each group belongs to one piece.
            let mut out = unsafe { out.part(piece.start * group_bytes..piece.end * group_bytes) };
            let mut next = piece.start;
            while next < piece.end {
                let (source, first) = (&sources[next / group_count], next % group_count);
                let last = group_count.min(first + (piece.end - next));
                let part_bytes = GROUP_ROWS * row_bytes;
                let done = first * part_bytes..source.bytes.len().min(last * part_bytes);
                let own = out.split_off_mut(..(last - first) * group_bytes).expect("a place for each group");
                pack_groups(isa, format, cols, &source.bytes[done.clone()], own);
                (source.release)(done);
                next += last - first;
            }
        });
        let weight = |place| Self { format, rows, cols, group_bytes, place };
        Ok(place.split(matrix_bytes).into_iter().map(weight).collect())
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The file's block format.
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// Memory in use: the file's bytes a weight, rows padded to a multiple of 32.
    pub fn bytes(&self) -> usize {
        self.place.len()
    }

    /// Bytes of 32 rows.
    pub(super) fn group_bytes(&self) -> usize {
        self.group_bytes
    }

    /// All groups, one after another.
    pub(super) fn groups(&self) -> &[u8] {
        self.place.bytes()
    }

    /// Decodes one row to f32, equal to the last bit to decoding it from the file (but for the smallest BF16, which are 0): an
    /// embedding needs no second copy.
    ///
    /// # Panics
    /// When there is no such row or `out` is not `cols` long.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.cols, "columns");
        let group = &self.groups()[row / GROUP_ROWS * self.group_bytes..][..self.group_bytes];
        let lane = row % GROUP_ROWS;
        with_format!(self.format, F => decode_lane::<F>(group, lane, out), panel => grid::decode_lane(self.format, group, lane, out), _ => {
            let width = self.format.block_bytes();
            for (column, value) in group.chunks_exact(GROUP_ROWS * width).zip(out) {
                blocks::decode_row(self.format, &column[lane * width..][..width], std::slice::from_mut(value));
            }
        });
    }
}

/// Bytes of a file row, and of 32 rows, a matrix and all matrices when they are packed.
struct Sizes {
    row_bytes: usize,
    group_bytes: usize,
    matrix_bytes: usize,
    all_bytes: usize,
}

/// Checks matrices, of which there are some; says which of them is none.
fn sizes(sources: &[WeightSource<'_>]) -> Result<Sizes, (usize, PackError)> {
    let WeightSource { format, rows, cols, .. } = sources[0];
    if rows == 0 || cols == 0 {
        return Err((0, PackError::Empty { rows, cols }));
    }
    if !cols.is_multiple_of(format.block_len()) {
        return Err((0, PackError::PartialBlock { format, cols }));
    }
    let wrong_size = |index: usize| {
        (index, PackError::WrongSize { format, rows, cols, bytes: sources[index].bytes.len() })
    };
    let (Some(row_bytes), Some(group_bytes)) = (format.row_bytes(cols), layout::group_bytes(format, cols))
    else {
        return Err(wrong_size(0));
    };
    for (index, source) in sources.iter().enumerate() {
        assert_eq!((source.format, source.rows, source.cols), (format, rows, cols), "weights of one shape");
        if row_bytes.checked_mul(rows) != Some(source.bytes.len()) {
            return Err(wrong_size(index));
        }
    }
    let matrix_bytes = rows.div_ceil(GROUP_ROWS).checked_mul(group_bytes).ok_or(wrong_size(0))?;
    let all_bytes = matrix_bytes.checked_mul(sources.len()).ok_or(wrong_size(0))?;
    Ok(Sizes { row_bytes, group_bytes, matrix_bytes, all_bytes })
}

fn decode_lane<F: Format>(group: &[u8], lane: usize, out: &mut [f32]) {
    let span = F::FORMAT.scale_span();
    for (b, out) in out.chunks_exact_mut(BLOCK_COLS).enumerate() {
        let mut codes = [0u8; BLOCK_COLS];
        for quad in 0..QUADS {
            for i in 0..4 {
                codes[4 * quad + i] = F::code(group, b, quad, 4 * lane + i);
            }
        }
        for (s, (out, codes)) in out.chunks_exact_mut(span).zip(codes.chunks_exact(span)).enumerate() {
            F::scales(group, b, s, lane).apply(F::FORMAT, codes, out);
        }
    }
}

/// Packs consecutive groups with the instructions of `isa`, which the machine has. AVX-512 does no better than AVX2, which comes
/// with it: memory is the limit, and compiled for AVX-512 the plain loops have gathers and scatters (5 instead of 19 GB/s).
fn pack_groups(isa: Isa, format: BlockFormat, cols: usize, rows: &[u8], out: &mut [u8]) {
    match isa {
        // SAFETY: plain Rust.
        Isa::Scalar => unsafe { pack::pack_groups::<Plain>(format, cols, rows, out) },
        // SAFETY: `pack_all` has checked that the machine has the instruction set.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 => unsafe {
            super::avx2::pack_groups(format, cols, rows, out)
        },
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("{} is not supported here", isa.name()),
    }
}
