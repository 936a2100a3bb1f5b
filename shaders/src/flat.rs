//! Many tensors in one vector on a GPU: gradients are packed into it, parameters are views of it.
//!
//! Each tensor has a place of its own that begins at a multiple of [`ALIGNMENT`]. So a tensor can be
//! a view of the vector, which takes neither a copy nor a launch, and kernels can treat the whole
//! vector as blocks that belong to one tensor each.

use std::sync::Arc;

use burn::backend::wgpu::CubeTensor;
use burn::backend::{DispatchDevice, TensorMetadata};
use burn::tensor::{Device, Shape, Tensor, TensorData};
use bytemuck::{Pod, Zeroable};

use crate::kernel::{PACK, PACK_ANY};
use crate::launch::{self, from_raw, grid, launch, raw};

/// Where places begin, in elements: 256 bytes, the largest distance that WebGPU lets an adapter ask
/// for between bindings of one buffer.
pub const ALIGNMENT: usize = 64;

/// Tensors per launch: what fits beside the output among WebGPU's eight storage buffers.
const AT_ONCE: usize = 7;

/// Elements that a workgroup of `pack` makes.
const BLOCK: usize = 1024;

/// Where each of several tensors lies in a vector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlatLayout {
    places: Vec<Place>,
    len: usize,
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its first element; a multiple of [`ALIGNMENT`].
    pub offset: usize,
    /// How many elements it has.
    pub len: usize,
}

impl Place {
    /// Elements up to the next place, or the vector's end.
    pub fn padded(self) -> usize {
        self.len.next_multiple_of(ALIGNMENT)
    }
}

impl FlatLayout {
    /// Tensors of these lengths, in this order.
    pub fn new(lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut layout = Self::default();
        for len in lengths {
            let place = Place {
                offset: layout.len,
                len,
            };
            layout.places.push(place);
            layout.len += place.padded();
        }
        layout
    }

    /// All places, in order.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Length of the vector, gaps included: a multiple of [`ALIGNMENT`].
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Elements of all tensors, without gaps.
    pub fn dense_len(&self) -> usize {
        self.places.iter().map(|place| place.len).sum()
    }

    /// From numbers without gaps to numbers with gaps of 0.
    ///
    /// # Panics
    ///
    /// If there are not as many as the tensors have elements.
    pub fn spread(&self, dense: &[f32]) -> Vec<f32> {
        assert_eq!(dense.len(), self.dense_len(), "elements of all tensors");
        let mut vector = vec![0.0; self.len];
        let mut rest = dense;
        for place in &self.places {
            let (values, behind) = rest.split_at(place.len);
            vector[place.offset..][..place.len].copy_from_slice(values);
            rest = behind;
        }
        vector
    }

    /// The way back of [`spread`](Self::spread): all numbers without gaps, into slices one after the
    /// other. No tensor goes across two.
    ///
    /// # Panics
    ///
    /// If the lengths do not fit the layout.
    pub fn gather<const N: usize>(&self, vector: &[f32], dense: [&mut [f32]; N]) {
        assert_eq!(vector.len(), self.len, "elements and gaps");
        let mut places = self.places.iter();
        for mut rest in dense {
            while !rest.is_empty() {
                let place = places.next().expect("no more numbers than the layout has");
                let (values, behind) = rest.split_at_mut(place.len);
                values.copy_from_slice(&vector[place.offset..][..place.len]);
                rest = behind;
            }
        }
        assert!(places.next().is_none(), "room for all numbers");
    }
}

/// A vector of [`FlatLayout`] on a GPU.
#[derive(Clone, Debug)]
pub struct FlatVector {
    layout: Arc<FlatLayout>,
    buffer: CubeTensor,
}

impl FlatVector {
    /// Numbers without gaps, sent to a GPU in one piece; nothing if `device` is no GPU.
    ///
    /// # Panics
    ///
    /// If there are not as many as the tensors have elements.
    pub fn upload(layout: &Arc<FlatLayout>, dense: &[f32], device: &Device) -> Option<Self> {
        is_gpu(device).then(|| Self::of(layout, layout.spread(dense), device))
    }

    /// All 0; nothing if `device` is no GPU.
    pub fn zeros(layout: &Arc<FlatLayout>, device: &Device) -> Option<Self> {
        is_gpu(device).then(|| Self::of(layout, vec![0.0; layout.len], device))
    }

    fn of(layout: &Arc<FlatLayout>, vector: Vec<f32>, device: &Device) -> Self {
        let shape = [vector.len()];
        let tensor = Tensor::<1>::from_data(TensorData::new(vector, shape), device);
        Self {
            layout: Arc::clone(layout),
            buffer: raw(tensor).expect("a tensor without gradients on a GPU"),
        }
    }

    /// Where each tensor lies.
    pub fn layout(&self) -> &Arc<FlatLayout> {
        &self.layout
    }

    /// The whole vector, gaps included.
    pub fn tensor(&self) -> Tensor<1> {
        from_raw(self.buffer.clone())
    }

    /// The buffer, for kernels.
    pub fn buffer(&self) -> &CubeTensor {
        &self.buffer
    }

    /// A tensor of the vector: no copy, it sees what is written to the vector later.
    ///
    /// # Panics
    ///
    /// If there is no such tensor or it has not as many elements as the shape.
    pub fn view<const D: usize>(&self, index: usize, shape: [usize; D]) -> Tensor<D> {
        from_raw(self.part(index, shape))
    }

    /// A tensor's part of the vector, for kernels.
    pub(crate) fn part<const D: usize>(&self, index: usize, shape: [usize; D]) -> CubeTensor {
        let place = self.layout.places[index];
        let shape = Shape::from(shape);
        assert_eq!(shape.num_elements(), place.len, "elements of tensor {index}");
        launch::part(&self.buffer, place.offset, shape)
    }

    /// One of which nothing is known yet, where another one is.
    pub(crate) fn undefined(layout: &Arc<FlatLayout>, like: &CubeTensor) -> Self {
        Self {
            layout: Arc::clone(layout),
            buffer: launch::empty(like, [layout.len]),
        }
    }

    /// A vector of `scale` times these tensors, one per place in order; where there is none, 0.
    ///
    /// # Panics
    ///
    /// If they are not as many as the layout's places, or not as long, or not on one GPU, or all
    /// missing.
    pub fn packed(layout: &Arc<FlatLayout>, tensors: &[Option<Tensor<1>>], scale: f32) -> Self {
        let tensors = raws(layout, tensors);
        let like = tensors.iter().flatten().next().expect("at least one tensor");
        let buffer = launch::empty(like, [layout.len]);
        pack(layout, &tensors, &buffer, scale, false);
        Self {
            layout: Arc::clone(layout),
            buffer,
        }
    }

    /// Adds `scale` times these tensors, as [`packed`](Self::packed) has them, in place: all that
    /// shares the vector sees it.
    ///
    /// # Panics
    ///
    /// As [`packed`](Self::packed).
    pub fn add(&mut self, tensors: &[Option<Tensor<1>>], scale: f32) {
        let tensors = raws(&self.layout, tensors);
        pack(&self.layout, &tensors, &self.buffer, scale, true);
    }
}

fn is_gpu(device: &Device) -> bool {
    matches!(
        device.clone().without_autodiff().as_dispatch(),
        DispatchDevice::Cube(_)
    )
}

fn raws(layout: &FlatLayout, tensors: &[Option<Tensor<1>>]) -> Vec<Option<CubeTensor>> {
    assert_eq!(tensors.len(), layout.places.len(), "a tensor per place");
    let raws = tensors.iter().zip(&layout.places).map(|(tensor, place)| {
        let tensor = raw(tensor.clone()?).expect("a tensor on a GPU");
        assert_eq!(
            tensor.shape().num_elements(),
            place.len,
            "a tensor as long as its place"
        );
        Some(launch::contiguous(tensor))
    });
    raws.collect()
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct PackPlace {
    first_group: u32,
    length: u32,
    offset: u32,
    padded: u32,
}

impl PackPlace {
    /// Of a slot that is not used: no workgroup is that far.
    const NOWHERE: Self = Self {
        first_group: u32::MAX,
        length: 0,
        offset: 0,
        padded: 0,
    };
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct PackParams {
    places: [PackPlace; AT_ONCE],
    scale: f32,
    accumulate: u32,
    groups_per_row: u32,
}

fn pack(layout: &FlatLayout, tensors: &[Option<CubeTensor>], out: &CubeTensor, scale: f32, accumulate: bool) {
    let places = tensors.iter().zip(&layout.places);
    // Adding nothing can be left out.
    let places = places.filter(|(tensor, _)| tensor.is_some() || !accumulate);
    let (fours, others): (Vec<_>, Vec<_>) = places.partition(|(_, place)| place.len.is_multiple_of(4));
    for (kernel, places) in [(&PACK, fours), (&PACK_ANY, others)] {
        for places in places.chunks(AT_ONCE) {
            // Bound in place of missing inputs.
            let any = places.iter().find_map(|(tensor, _)| (*tensor).clone());
            let any = any.unwrap_or_else(|| launch::empty(out, [4]));
            let mut inputs = [&any; AT_ONCE];
            let mut groups = 0;
            let mut described = [PackPlace::NOWHERE; AT_ONCE];
            for (slot, (tensor, place)) in places.iter().enumerate() {
                described[slot] = PackPlace {
                    first_group: groups,
                    length: tensor.as_ref().map_or(0, |_| place.len as u32),
                    offset: (place.offset / 4) as u32,
                    padded: (place.padded() / 4) as u32,
                };
                if let Some(tensor) = tensor {
                    inputs[slot] = tensor;
                }
                groups += place.len.div_ceil(BLOCK) as u32;
            }
            let groups = grid(groups as usize);
            let params = PackParams {
                places: described,
                scale,
                accumulate: u32::from(accumulate),
                groups_per_row: groups[0],
            };
            launch(kernel, &inputs, &[out], params, groups);
        }
    }
}
