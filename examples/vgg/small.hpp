// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A small network: two convolutions and three dense layers, for images of 16x16 pixels in
///         four classes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <stagger/model/sequential.hpp>

#include "images.hpp"
#include "model/convolution.hpp"
#include "model/dense.hpp"
#include "model/max_pool.hpp"

namespace vgg::small {

inline constexpr std::size_t side = 16;
inline constexpr std::uint8_t classes = 4;

/// Logits of the classes from images [images][16][16][3]. The dense layers have 256, 256 and 4
/// outputs.
/// @param wrap  called with each layer; what it returns is the layer of the network
template <class Wrap> [[nodiscard]] auto make_model(std::uint64_t seed, Wrap wrap) {
  layers::Random random = layers::stream(seed, 0);
  Dropout const none{};
  return stagger::Sequential{wrap(Convolution<float>(colours, 8, random)),
                             wrap(MaxPool<float>{}),
                             wrap(Convolution<float>(8, 16, random)),
                             wrap(MaxPool<float>{}),
                             wrap(Dense<float>(256, 256, none, random)),
                             wrap(Dense<float>(256, 256, none, random)),
                             wrap(Dense<float>(256, classes, std::nullopt, random))};
}

/// A corner of each texture of the first four classes, gratings in four orientations.
class Textures {
 public:
  explicit Textures(std::uint64_t seed) {
    Images const all = make_textures(seed, 1000, 0).training;
    std::size_t const bytes = all.pixels.size() / all.size();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all.labels[i] >= classes) continue;
      auto const first = all.pixels.begin() + static_cast<std::ptrdiff_t>(i * bytes);
      images_.pixels.insert(images_.pixels.end(), first,
                            first + static_cast<std::ptrdiff_t>(bytes));
      images_.labels.push_back(all.labels[i]);
    }
  }

  /// The images of a training step, as Images::draw.
  [[nodiscard]] Batch draw(std::uint64_t seed, std::int64_t step,
                           Minibatch const& minibatch) const {
    Batch batch;
    images_.draw(seed, step, minibatch, batch);
    for (auto& whole : batch.inputs) {
      stagger::Tensor<float> corner({whole.rows(), side, side, std::size_t{colours}});
      std::size_t const line = side * colours;
      for (std::size_t r = 0; r < whole.rows() * side; ++r)
        std::copy_n(whole.data() + (r / side * 2 * side + r % side) * 2 * line, line,
                    corner.data() + r * line);
      whole = std::move(corner);
    }
    return batch;
  }

 private:
  Images images_;
};

}  // namespace vgg::small
