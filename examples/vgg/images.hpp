// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Labelled images of 32x32 pixels: CIFAR-10, or textures from a generator.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <stagger/core/tensor.hpp>
#include <stagger/engine/step.hpp>

#include "model/minibatch.hpp"
#include "model/sizes.hpp"

namespace vgg {

/// Microbatches of images [rows][32][32][3], with values in [-2, 2), and of labels [rows].
using Batch = stagger::Batch<stagger::Tensor<float>, stagger::Tensor<std::int32_t>>;

/// Images with their labels.
struct Images {
  std::vector<std::uint8_t> pixels;  ///< [images][32][32][3]
  std::vector<std::uint8_t> labels;  ///< [images]

  [[nodiscard]] std::size_t size() const noexcept { return labels.size(); }

  /// Draws the images of a training step; they depend only on the seed and the step's number.
  void draw(std::uint64_t seed, std::int64_t step, Minibatch const& minibatch, Batch& batch) const;

  /// Images [first, first + minibatch.examples), in order.
  /// @pre  there are as many
  void take(std::size_t first, Minibatch const& minibatch, Batch& batch) const;
};

/// What a model learns from, and what it is judged by.
struct DataSet {
  Images training;
  Images held_out;
};

/// Reads CIFAR-10's binary files data_batch_1.bin to data_batch_5.bin, and test_batch.bin, which is
/// held out.
/// @param images_per_file  10000 in the published files
/// @throws Error  naming the file: with Errc::io if it cannot be read, with Errc::bad_data if it
///                has another size or a label above 9
/// @source A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009
[[nodiscard]] DataSet read_cifar(std::string const& folder, std::size_t images_per_file = 10000);

/// Images of ten kinds of textures, the labels in turn: 0 to 3 are coarse gratings in four
/// orientations, 4 to 7 fine ones, 8 a chequered pattern, 9 dots. Phase and colours are random, so
/// that the mean image of every class is the same grey, and a linear model has nothing to go by;
/// angle and period vary a little, and each pixel has noise.
/// @return  the same images for the same seed, of which training and held-out ones differ
[[nodiscard]] DataSet make_textures(std::uint64_t seed, std::size_t training, std::size_t held_out);

}  // namespace vgg
