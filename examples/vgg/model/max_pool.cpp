// SPDX-License-Identifier: Apache-2.0
#include "max_pool.hpp"

#include <cstddef>

#include <stagger/core/error.hpp>

namespace vgg {

namespace {

/// Calls visit(to, from) for each pixel of the output of images like x: where its channels begin in
/// the output, and where those of the first of its four pixels begin in x.
template <class T, class Visit> void for_each_pixel(stagger::Tensor<T> const& x, Visit visit) {
  std::size_t const width = x.extent(2);
  std::size_t const channels = x.extent(3);
  std::size_t to = 0;
  for (std::size_t row = 0; row < x.extent(0) * x.extent(1); row += 2)  // of all images
    for (std::size_t column = 0; column < width; column += 2, to += channels)
      visit(to, (row * width + column) * channels);
}

}  // namespace

template <class T>
void MaxPool<T>::forward(stagger::Context&, Input const& x, Output& y, Saved& saved) const {
  if (x.extent(1) % 2 != 0 || x.extent(2) % 2 != 0)
    stagger::raise(stagger::Errc::mismatch, "images of ", x.extent(1), " x ", x.extent(2),
                   " pixels cannot be pooled by 2x2; use an even height and width");
  std::size_t const channels = x.extent(3);
  std::size_t const line = x.extent(2) * channels;
  y.resize({x.extent(0), x.extent(1) / 2, x.extent(2) / 2, channels});
  saved.largest.resize_like(y);
  for_each_pixel(x, [&](std::size_t to, std::size_t from) {
    T const* const first = x.data() + from;
    for (std::size_t c = 0; c < channels; ++c) {
      T largest = first[c];
      std::uint8_t which = 0;
      auto const take = [&](T value, std::uint8_t number) {
        bool const more = value > largest;
        largest = more ? value : largest;
        which = more ? number : which;
      };
      take(first[channels + c], 1);
      take(first[line + c], 2);
      take(first[line + channels + c], 3);
      y[to + c] = largest;
      saved.largest[to + c] = which;
    }
  });
}

template <class T>
void MaxPool<T>::backward_input(stagger::Context&, Input const& x, Output const& dy, Input& dx,
                                Saved& saved) const {
  std::size_t const channels = x.extent(3);
  std::size_t const line = x.extent(2) * channels;
  dx.resize_like(x);
  for_each_pixel(x, [&](std::size_t to, std::size_t from) {
    T* const first = dx.data() + from;
    for (std::size_t c = 0; c < channels; ++c) {
      std::uint8_t const which = saved.largest[to + c];
      T const slope = dy[to + c];
      first[c] = which == 0 ? slope : T{0};
      first[channels + c] = which == 1 ? slope : T{0};
      first[line + c] = which == 2 ? slope : T{0};
      first[line + channels + c] = which == 3 ? slope : T{0};
    }
  });
}

template class MaxPool<float>;
template class MaxPool<double>;

}  // namespace vgg
