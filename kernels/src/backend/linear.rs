//! Packed weights and their products.
//!
//! Rows are often read once, by the next product alone. So a product says what its rows are made from ([`Input`]) and what
//! becomes of its outputs ([`Product`]), and a backend is free to do either on the way. One that composes them of passes over
//! whole tensors, with scratch of its own for the rows that are made, is right as well.

use std::ops::Range;

use super::{Activation, DeviceError, Memory, RowNorm};
use crate::blocks::BlockFormat;

/// A packed weight matrix as it lies in a file: `rows` outputs by `cols` inputs.
#[derive(Clone, Copy)]
pub struct WeightSource<'a> {
    /// Tensor name, for errors.
    pub name: &'a str,
    /// How it is packed.
    pub format: BlockFormat,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The packed rows, one after the other.
    pub bytes: &'a [u8],
    /// Told, from any thread, of each range of `bytes` that has been copied, so that the file's pages can go back while
    /// the rest is read. Ranges do not overlap and cover all of `bytes`.
    pub release: &'a (dyn Fn(Range<usize>) + Sync),
}

/// The rows of a product.
pub enum Input<'a, T> {
    /// As they are.
    Rows(&'a T),
    /// Their norms.
    Normed(&'a T, RowNorm<'a, T>),
    /// `activation(gate, up)`, element by element.
    Gated {
        /// What goes through the activation.
        gate: &'a T,
        /// What it is multiplied with; of the same shape.
        up: &'a T,
        /// Which one.
        activation: Activation,
    },
}

/// One product of a [`Linear::multiply`]: `y[r] = scale * (weight * input[r]) + bias`, each step rounded by itself.
pub struct Product<'a, B: Linear + ?Sized> {
    /// The matrix.
    pub weight: &'a B::Weight,
    /// Factor on the product; 1 for none.
    pub scale: f32,
    /// One row.
    pub bias: Option<&'a B::Tensor>,
    /// `None`: `output[r] = y[r]`. A factor: `output[r] += factor * y[r]`, the sum with the residual.
    pub added: Option<f32>,
    /// Where the rows go; no other term of the call reads or writes it.
    pub output: &'a mut B::Tensor,
}

impl<'a, B: Linear + ?Sized> Product<'a, B> {
    /// `output[r] = weight * input[r]`.
    pub fn plain(weight: &'a B::Weight, output: &'a mut B::Tensor) -> Self {
        Self { weight, scale: 1.0, bias: None, added: None, output }
    }
}

/// Packed weights and their products.
pub trait Linear: Memory {
    /// A packed matrix in device memory, at the file's own bytes a weight.
    type Weight: Send;

    /// Reserves memory for weights of `bytes` in all, which are to come. Those that are brought without, or beyond it, get
    /// memory one by one.
    ///
    /// # Errors
    /// There is not that much.
    fn reserve_weights(&mut self, bytes: usize) -> Result<(), DeviceError>;

    /// Copies (and reorders) a weight to the device.
    ///
    /// # Errors
    /// A shape or size that the backend cannot multiply, by the tensor's name; there is no memory for it.
    fn weight(&mut self, source: WeightSource<'_>) -> Result<Self::Weight, DeviceError>;

    /// Several weights of one format and shape in one piece of work and of memory: the experts of a layer, each too small
    /// to be worth either.
    ///
    /// # Errors
    /// As [`Self::weight`].
    fn weights(&mut self, sources: &[WeightSource<'_>]) -> Result<Vec<Self::Weight>, DeviceError>;

    /// Bytes of device memory that `weight` takes.
    fn weight_bytes(&self, weight: &Self::Weight) -> usize;

    /// `output[i] = scale * row ids[i] of weight`.
    fn embed(&mut self, weight: &Self::Weight, ids: &[u32], scale: f32, output: &mut Self::Tensor);

    /// Several products of the same input in one piece of work (q, k and v; gate and up).
    fn multiply<const N: usize>(
        &mut self,
        input: Input<'_, Self::Tensor>,
        rows: usize,
        products: [Product<'_, Self>; N],
    );
}
