// SPDX-License-Identifier: Apache-2.0
#include "convolution.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include <stagger/core/error.hpp>

#include "layers/products.hpp"

namespace vgg {

using layers::count;
using layers::view;

namespace {

/// One image, [height][width][channels].
struct Image {
  Index height, width, channels;

  template <class T>
  explicit Image(stagger::Tensor<T> const& images)
      : height(count(images.extent(1))),
        width(count(images.extent(2))),
        channels(count(images.extent(3))) {}

  [[nodiscard]] Index pixels() const { return height * width; }
  [[nodiscard]] Index size() const { return pixels() * channels; }
  [[nodiscard]] Index patch() const { return 9 * channels; }
};

/// Calls visit(run, at, length) for each row of three pixels of each patch: `run` is where it
/// stands in the matrix of patches, `at` in the image; the pixels beyond the border are left out.
/// Calls visit(run, -1, length) for what is left out.
template <class Visit> void for_each_run(Image const& image, Visit visit) {
  Index const row = 3 * image.channels;
  Index run = 0;
  for (Index y = 0; y < image.height; ++y)
    for (Index x = 0; x < image.width; ++x) {
      Index const before = x == 0 ? image.channels : 0;
      Index const after = x + 1 == image.width ? image.channels : 0;
      for (Index from = y - 1; from <= y + 1; ++from, run += row) {
        if (from < 0 || from >= image.height) {
          visit(run, Index{-1}, row);
          continue;
        }
        Index const at = (from * image.width + x - 1) * image.channels;
        if (before > 0) visit(run, Index{-1}, before);
        visit(run + before, at + before, row - before - after);
        if (after > 0) visit(run + row - after, Index{-1}, after);
      }
    }
}

/// patches [pixels][3][3][channels] of an image, zero beyond its border.
template <class T> void to_patches(Image const& image, T const* pixels, T* patches) {
  for_each_run(image, [&](Index run, Index at, Index length) {
    if (at < 0)
      std::fill_n(patches + run, length, T{0});
    else
      std::copy_n(pixels + at, length, patches + run);
  });
}

/// Each pixel is the sum of its places in the patches.
template <class T> void add_patches(Image const& image, T const* patches, T* pixels) {
  std::fill_n(pixels, image.size(), T{0});
  for_each_run(image, [&](Index run, Index at, Index length) {
    if (at < 0) return;
    for (Index i = 0; i < length; ++i) pixels[at + i] += patches[run + i];
  });
}

template <class T> void keep_where(std::uint8_t const* on, T const* dy, Index size, T* dz) {
  for (Index i = 0; i < size; ++i) dz[i] = on[i] != 0 ? dy[i] : T{0};
}

template <class T> T* scratch(stagger::Context& context, Index size) {
  return context.scratch<T>(count(size)).data();
}

}  // namespace

template <class T>
Convolution<T>::Convolution(Index inputs, Index outputs, layers::Random& random)
    : inputs_(inputs),
      outputs_(outputs),
      weight_(layers::normal_parameter<T>("weight", random, count(9 * inputs * outputs),
                                          std::sqrt(2 / (9 * static_cast<double>(inputs))))),
      bias_("bias", std::vector<T>(count(outputs)), false) {}

template <class T>
void Convolution<T>::forward(stagger::Context& context, Input const& x, Output& y,
                             Saved& saved) const {
  if (x.extent(3) != count(inputs_))
    stagger::raise(stagger::Errc::mismatch, "a convolution of ",
                   stagger::counted(inputs_, "channel"), " was given images of ", x.extent(3),
                   "; give each layer what the one before it returns");
  Image const image(x);
  Index const size = image.pixels() * outputs_;
  y.resize({x.extent(0), x.extent(1), x.extent(2), count(outputs_)});
  saved.on.resize_like(y);
  T* const patches = scratch<T>(context, image.pixels() * image.patch());
  auto const weight = view(context[weight_].data(), image.patch(), outputs_);
  for (Index i = 0; i < count(x.rows()); ++i) {
    T* const to = y.data() + i * size;
    std::uint8_t* const on = saved.on.data() + i * size;
    to_patches(image, x.data() + i * image.size(), patches);
    layers::fill_rows(to, image.pixels(), context[bias_]);
    layers::add_product(view(static_cast<T const*>(patches), image.pixels(), image.patch()), weight,
                        view(to, image.pixels(), outputs_));
    for (Index e = 0; e < size; ++e) {
      on[e] = to[e] > T{0} ? 1 : 0;
      to[e] = std::max(to[e], T{0});
    }
  }
}

template <class T>
void Convolution<T>::backward_input(stagger::Context& context, Input const& x, Output const& dy,
                                    Input& dx, Saved& saved) const {
  Image const image(x);
  Index const size = image.pixels() * outputs_;
  dx.resize_like(x);
  T* const dz = scratch<T>(context, size);
  T* const patches = scratch<T>(context, image.pixels() * image.patch());
  auto const weight = view(context[weight_].data(), image.patch(), outputs_);
  for (Index i = 0; i < count(x.rows()); ++i) {
    keep_where(saved.on.data() + i * size, dy.data() + i * size, size, dz);
    layers::multiply(view(dz, image.pixels(), outputs_), layers::transposed(weight),
                     view(patches, image.pixels(), image.patch()));
    add_patches(image, patches, dx.data() + i * image.size());
  }
}

template <class T>
void Convolution<T>::backward_weight(stagger::Context& context, Input const& x, Output const& dy,
                                     Saved& saved) const {
  Image const image(x);
  Index const size = image.pixels() * outputs_;
  T* const dz = scratch<T>(context, size);
  T* const patches = scratch<T>(context, image.pixels() * image.patch());
  auto gradient = view(context.gradient(weight_).data(), image.patch(), outputs_);
  for (Index i = 0; i < count(x.rows()); ++i) {
    keep_where(saved.on.data() + i * size, dy.data() + i * size, size, dz);
    to_patches(image, x.data() + i * image.size(), patches);
    layers::add_product(layers::transposed(view(patches, image.pixels(), image.patch())),
                        view(dz, image.pixels(), outputs_), gradient);
    layers::add_column_sums(dz, image.pixels(), context.gradient(bias_));
  }
}

template class Convolution<float>;
template class Convolution<double>;

}  // namespace vgg
