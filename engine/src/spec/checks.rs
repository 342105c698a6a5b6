//! A spec against its file: every tensor is there, with the shape that the metadata says, and no other tensor.

use std::collections::HashSet;

use zllm_kernels::blocks::decode_row;

use super::{ModelSpec, SpecError};
use crate::gguf::{GgufFile, Tensor};

/// Checks every tensor that `spec` uses; `ignored` says which others may be there.
pub(super) fn check(
    spec: &ModelSpec,
    file: &GgufFile,
    ignored: impl Fn(&str) -> bool,
) -> Result<(), SpecError> {
    let uses = spec.tensors();
    for used in &uses {
        shape(file, used.name, &used.dims)?;
    }
    let known: HashSet<&str> = uses.iter().map(|used| used.name).collect();
    match file.tensors().find(|tensor| !known.contains(tensor.name()) && !ignored(tensor.name())) {
        None => Ok(()),
        // A tensor that the spec does not name means a variant of the family that computes something else.
        Some(tensor) => Err(SpecError::UnknownTensor {
            file: file.path().display().to_string(),
            tensor: tensor.name().to_owned(),
            architecture: spec.architecture.clone(),
        }),
    }
}

/// Decodes a tensor of shape `dims` to f32.
pub(crate) fn values(file: &GgufFile, name: &str, dims: &[usize]) -> Result<Vec<f32>, SpecError> {
    let tensor = shape(file, name, dims)?;
    let format = tensor.format()?;
    let (rows, cols) = (tensor.rows(), tensor.cols());
    let row_bytes = format.row_bytes(cols).expect("the reader checked that rows are whole blocks");
    let mut values = vec![0.0; rows * cols];
    for (row, out) in tensor.bytes().chunks_exact(row_bytes).zip(values.chunks_exact_mut(cols)) {
        decode_row(format, row, out);
    }
    Ok(values)
}

/// The tensor `name`, when it has `dims` (columns first; further dimensions are 1) and a format that is decoded.
fn shape<'f>(file: &'f GgufFile, name: &str, dims: &[usize]) -> Result<Tensor<'f>, SpecError> {
    fn without_ones(dims: &[usize]) -> &[usize] {
        let len = dims.iter().rposition(|d| *d != 1).map_or(0, |last| last + 1);
        &dims[..len.max(1).min(dims.len())]
    }
    let tensor = file.require_tensor(name)?;
    if without_ones(tensor.dims()) != without_ones(dims) {
        return Err(SpecError::BadShape {
            file: file.path().display().to_string(),
            tensor: name.to_owned(),
            found: tensor.dims().to_vec(),
            expected: without_ones(dims).to_vec(),
        });
    }
    tensor.format()?;
    Ok(tensor)
}
