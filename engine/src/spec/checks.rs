//! A spec against its file: every tensor is there, with the shape that the metadata says, and no other tensor.

use std::collections::HashSet;

use zllm_kernels::blocks::decode_row;

use super::{Ffn, LinearSpec, Mixer, ModelSpec, NormSpec, SpecError, read::ROPE_FACTORS};
use crate::gguf::GgufFile;

/// Checks every tensor that `spec` names.
pub(super) fn check(spec: &ModelSpec, file: &GgufFile) -> Result<(), SpecError> {
    shape(file, &spec.embedding, &[spec.width, spec.vocab_size])?;
    for layer in &spec.layers {
        norm(file, &layer.mixer_norm)?;
        match &layer.mixer {
            Mixer::Attention(a) => {
                [&a.query, &a.key, &a.value, &a.output].into_iter().try_for_each(|l| linear(file, l))?;
                [&a.query_norm, &a.key_norm].into_iter().flatten().try_for_each(|n| norm(file, n))?;
            }
        }
        norm(file, &layer.ffn_norm)?;
        match &layer.ffn {
            Ffn::Gated { gate, up, down, .. } => {
                [gate, up, down].into_iter().try_for_each(|l| linear(file, l))?;
            }
        }
        [&layer.mixer_post_norm, &layer.ffn_post_norm]
            .into_iter()
            .flatten()
            .try_for_each(|n| norm(file, n))?;
    }
    norm(file, &spec.output_norm)?;
    linear(file, &spec.head)?;
    no_others(spec, file)
}

/// A tensor that the spec does not name means a variant of the family that computes something else.
fn no_others(spec: &ModelSpec, file: &GgufFile) -> Result<(), SpecError> {
    let mut known: HashSet<&str> = spec.tensor_names().into_iter().collect();
    known.insert(ROPE_FACTORS);
    match file.tensors().find(|tensor| !known.contains(tensor.name())) {
        None => Ok(()),
        Some(tensor) => Err(SpecError::UnknownTensor {
            file: file.path().display().to_string(),
            tensor: tensor.name().to_owned(),
            architecture: spec.architecture.clone(),
        }),
    }
}

/// Decodes a vector of `len` values.
pub(crate) fn vector(file: &GgufFile, name: &str, len: usize) -> Result<Vec<f32>, SpecError> {
    let tensor = shape(file, name, &[len])?;
    let mut values = vec![0.0; len];
    decode_row(tensor.format()?, tensor.bytes(), &mut values);
    Ok(values)
}

fn linear(file: &GgufFile, linear: &LinearSpec) -> Result<(), SpecError> {
    shape(file, &linear.weight, &[linear.inputs, linear.outputs])?;
    if let Some(bias) = &linear.bias {
        shape(file, bias, &[linear.outputs])?;
    }
    Ok(())
}

fn norm(file: &GgufFile, norm: &NormSpec) -> Result<(), SpecError> {
    shape(file, &norm.weight, &[norm.len]).map(drop)
}

/// The tensor `name`, when it has `dims` (columns first; further dimensions must be 1) and a format that is decoded.
fn shape<'f>(file: &'f GgufFile, name: &str, dims: &[usize]) -> Result<crate::gguf::Tensor<'f>, SpecError> {
    let tensor = file.require_tensor(name)?;
    let (front, rest) = tensor.dims().split_at(dims.len().min(tensor.dims().len()));
    if front != dims || rest.iter().any(|d| *d != 1) {
        return Err(SpecError::BadShape {
            file: file.path().display().to_string(),
            tensor: name.to_owned(),
            found: tensor.dims().to_vec(),
            expected: dims.to_vec(),
        });
    }
    tensor.format()?;
    Ok(tensor)
}
