// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Timelines as SVG pictures: one lane per rank, one block per action.

#include <array>
#include <span>
#include <string>

#include <stagger/report/detail/svg_writer.hpp>
#include <stagger/report/svg_options.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::report {

/// Draws timelines below each other with one time scale, each in a panel of its own.
///
/// Lanes are ranks, blocks are actions: F blue, B orange, I amber, W green, and reductions of
/// gradients purple. Without colour they differ by lightness and by bars along their edges: I at
/// the bottom, W at the top, B, which is both, on both. Later stages of a rank are lighter. The
/// number in a block is its microbatch.
/// The halves of an overlapped pair share its time, one above the other; messages and pushes to a
/// server are thin lines along the bottom of the lane, pulls along its top. A block costs about 8
/// bytes, and a number in it about 25.
///
/// Where more than 10000 blocks are narrower than a pixel on average, a lane shows how its time is
/// divided instead: the height of a colour is its share. The picture then says so.
///
/// @return        a whole SVG document; the same bytes for the same input, in every locale
/// @throws Error  bad_data for a time that is not finite or an end before its start,
///                bad_configuration for a width below 200
[[nodiscard]] inline std::string svg(std::span<SvgPanel const> panels,
                                     SvgOptions const& options = {}) {
  return detail::SvgWriter(panels, options).document();
}

/// Draws one timeline.
[[nodiscard]] inline std::string svg(schedule::Timeline const& timeline,
                                     SvgOptions const& options = {}) {
  std::array<SvgPanel, 1> const panel{SvgPanel{{}, &timeline}};
  return svg(std::span<SvgPanel const>{panel}, options);
}

/// Draws what was predicted over what was measured, with the same time scale.
[[nodiscard]] inline std::string svg(schedule::Timeline const& predicted,
                                     schedule::Timeline const& measured,
                                     SvgOptions const& options = {}) {
  std::array<SvgPanel, 2> const panels{SvgPanel{"predicted", &predicted},
                                       SvgPanel{"measured", &measured}};
  return svg(std::span<SvgPanel const>{panels}, options);
}

}  // namespace stagger::report
