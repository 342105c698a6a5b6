//! Mixtures of experts: which experts a row goes to, and products that read the chosen experts alone.
//!
//! A step is routed once ([`Experts::route`]). A *pair* is a row and one of the experts it chose. Pairs are grouped by
//! expert, so that prefill multiplies each expert once with all its rows: experts ascending, rows of an expert ascending.
//! Each pair takes its row through the network of its expert, and the results come back to the row, weighted.

use super::{Activation, DeviceError, Linear};

/// Most experts of a layer that a backend must be able to route.
pub const MAX_EXPERTS: usize = 1024;

/// Least sum that chosen weights are divided by when they are normalised: the smallest normal half float, as in
/// llama.cpp's `build_moe_ffn` (`src/llama-graph.cpp`).
pub const SMALLEST_WEIGHT_SUM: f32 = 1.0 / 16_384.0;

/// What becomes of a router's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingScores {
    /// Softmax over all experts; choice and weights are made from it.
    Softmax,
    /// `1 / (1 + e^-x)` of each; choice and weights are made from it.
    Sigmoid,
    /// The choice is made on the logits; the weights are the softmax over the chosen ones.
    SoftmaxOfChosen,
}

/// How rows choose experts.
///
/// The best score is chosen first; of equal scores that of the lower expert. With `groups` above 1 the experts are cut in
/// as many equal runs, a run is worth the sum of its two best scores (of its one, where it has no other), and experts are
/// chosen from the `groups_used` best runs alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Experts in all; at most [`MAX_EXPERTS`].
    pub experts: usize,
    /// Experts of a row; no more than there are in the groups used.
    pub used: usize,
    /// What becomes of the logits.
    pub scores: RoutingScores,
    /// Groups of experts; divides `experts`. 1: none.
    pub groups: usize,
    /// Groups from which experts are chosen.
    pub groups_used: usize,
    /// Divides a row's weights by their sum, or by [`SMALLEST_WEIGHT_SUM`] where that is more.
    pub normalise: bool,
    /// Then they are multiplied by this.
    pub scale: f32,
}

/// The rows of an [`Experts::multiply_routed`], one a pair.
pub enum RoutedInput<'a, T> {
    /// Each pair multiplies its row of a tensor that has one for each row of the step.
    Rows(&'a T),
    /// `activation(gate, up)` of tensors that have a row for each pair.
    Gated {
        /// What goes through the activation.
        gate: &'a T,
        /// What it is multiplied with.
        up: &'a T,
        /// Which one.
        activation: Activation,
    },
}

/// One product of an [`Experts::multiply_routed`], with `e` the expert of pair `p`:
/// `output[p] = scales[e] * (weights[e] * input[p]) + biases[e]`, each step rounded by itself.
pub struct RoutedProduct<'a, B: Linear + ?Sized> {
    /// A matrix for each expert, all of one shape.
    pub weights: &'a [B::Weight],
    /// One row, a column for each expert; none: 1.
    pub scales: Option<&'a B::Tensor>,
    /// A row for each expert; none: 0.
    pub biases: Option<&'a B::Tensor>,
    /// Where the pairs go.
    pub output: &'a mut B::Tensor,
}

/// Routing, and products with the chosen experts.
///
/// A row whose scores have a NaN (a softmax makes one of an infinity too) goes to some experts with the weight NaN: its
/// output is NaN, and no other row's.
pub trait Experts: Linear {
    /// The choice of every row of a step, in device memory.
    type Routes: Send;

    /// Room for the routes of `rows` rows of `used` experts each.
    ///
    /// # Errors
    /// There is no memory for it.
    fn routes(&mut self, rows: usize, used: usize) -> Result<Self::Routes, DeviceError>;

    /// Chooses for each of the first `rows` rows of `logits` (a column an expert). `bias` (one row) is added to the scores
    /// for the choice alone: the weights do not have it.
    fn route(
        &mut self,
        logits: &Self::Tensor,
        rows: usize,
        routing: &Routing,
        bias: Option<&Self::Tensor>,
        routes: &mut Self::Routes,
    );

    /// Multiplies each pair with its expert's matrix, several products of the same input (gate and up) as one piece of
    /// work. Experts that nobody chose are not read.
    fn multiply_routed<const N: usize>(
        &mut self,
        input: RoutedInput<'_, Self::Tensor>,
        routes: &Self::Routes,
        products: [RoutedProduct<'_, Self>; N],
    );

    /// `output[row] = sum of weight * input[pair]` over the row's pairs, the best expert first.
    fn combine_routed(&mut self, input: &Self::Tensor, routes: &Self::Routes, output: &mut Self::Tensor);
}
