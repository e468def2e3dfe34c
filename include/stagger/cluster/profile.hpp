// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Profiles: the costs of a model, layer by layer.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/math.hpp>

namespace stagger::cluster {

/// Times of a layer, or of several, for one batch of the profile.
struct Times {
  double forward_s = 0;
  double backward_s = 0;         ///< of the whole backward pass
  double backward_weight_s = 0;  ///< the part of backward_s that no layer below waits for

  [[nodiscard]] constexpr double total_s() const noexcept { return forward_s + backward_s; }
  friend constexpr bool operator==(Times const&, Times const&) = default;
};

/// Times of one layer as measured on devices of another kind than the profile's.
struct DeviceTimes {
  std::string kind{};
  double forward_s = 0;
  double backward_s = 0;
  std::optional<double> backward_weight_s{};
  friend constexpr bool operator==(DeviceTimes const&, DeviceTimes const&) = default;
};

/// The smallest unit that a partitioner may cut between. Times and bytes are for one batch of the
/// profile, on its device.
struct Layer {
  std::string name{};
  double forward_s = 0;
  double backward_s = 0;
  std::optional<double> backward_weight_s{};   ///< part of backward_s; empty: unknown
  std::uint64_t activation_bytes = 0;          ///< crossing the boundary after this layer
  std::uint64_t parameter_bytes = 0;           ///< of one copy; gradients are as large
  std::optional<std::uint64_t> stash_bytes{};  ///< kept for backward; empty: activation_bytes
  std::vector<DeviceTimes> by_device{};        ///< used as they stand, not divided by a speed

  /// Bytes that one batch in flight keeps on the layer's device.
  [[nodiscard]] constexpr std::uint64_t stash() const noexcept {
    return stash_bytes.value_or(activation_bytes);
  }

  /// Times on a device: those measured there, or the profile's divided by the device's speed.
  /// If the time of the weight gradient is unknown, half of the backward's is assumed.
  [[nodiscard]] constexpr Times on(std::string_view kind, double speed) const noexcept {
    for (DeviceTimes const& d : by_device)
      if (d.kind == kind)
        return {d.forward_s, d.backward_s,
                d.backward_weight_s.value_or(d.backward_s * weight_share())};
    return {forward_s / speed, backward_s / speed, backward_s * weight_share() / speed};
  }

  friend constexpr bool operator==(Layer const&, Layer const&) = default;

 private:
  [[nodiscard]] constexpr double weight_share() const noexcept {
    return backward_weight_s && backward_s > 0 ? *backward_weight_s / backward_s : 0.5;
  }
};

/// A model as a chain of layers, the first next to the input.
struct Profile {
  std::string name{};
  int batch = 1;         ///< samples that times and bytes are for
  std::string device{};  ///< where it was measured
  std::vector<Layer> layers{};
  std::vector<std::string> warnings{};  ///< what its reader had to leave out

  [[nodiscard]] constexpr int size() const noexcept { return static_cast<int>(layers.size()); }
  [[nodiscard]] constexpr Layer const& layer(int number) const {
    return layers[static_cast<std::size_t>(number)];
  }
  friend constexpr bool operator==(Profile const&, Profile const&) = default;
};

namespace detail {

[[gnu::cold]] inline std::string name_of(Layer const& layer, std::size_t index) {
  return layer.name.empty() ? text("layer ", index)
                            : text("layer ", index, " ('", layer.name, "')");
}

constexpr void require_time(Layer const& layer, std::size_t index, char const* field, double value,
                            std::string_view kind = {}) {
  if (stagger::detail::math::finite_and_not_negative(value)) return;
  raise(Errc::bad_data, name_of(layer, index), " has ", field, " = ", value,
        kind.empty() ? std::string() : text(" on ", std::string(kind)),
        "; give a finite number of seconds that is not negative");
}

constexpr void require_weight(Layer const& layer, std::size_t index, double weight,
                              double backward) {
  require_time(layer, index, "backward_weight_s", weight);
  if (weight <= backward) return;
  raise(Errc::bad_data, name_of(layer, index), " has backward_weight_s = ", weight,
        ", which is more than its backward_s = ", backward, "; give a part of backward_s");
}

}  // namespace detail

/// Checks a profile.
/// @throws Error  bad_data naming the layer (numbered from 0), the field and its value
constexpr void require_profile(Profile const& profile) {
  using namespace detail;
  if (profile.batch < 1)
    raise(Errc::bad_data, "the profile has batch = ", profile.batch, "; give 1 sample or more");
  if (profile.layers.empty()) raise(Errc::bad_data, "the profile has no layers; give one or more");
  for (std::size_t i = 0; i < profile.layers.size(); ++i) {
    Layer const& layer = profile.layers[i];
    require_time(layer, i, "forward_s", layer.forward_s);
    require_time(layer, i, "backward_s", layer.backward_s);
    if (layer.backward_weight_s)
      require_weight(layer, i, *layer.backward_weight_s, layer.backward_s);
    for (DeviceTimes const& d : layer.by_device) {
      require_time(layer, i, "forward_s", d.forward_s, d.kind);
      require_time(layer, i, "backward_s", d.backward_s, d.kind);
      if (d.backward_weight_s) require_weight(layer, i, *d.backward_weight_s, d.backward_s);
    }
  }
}

/// Warnings about what the reader of the profile had to leave out, and about values that are legal
/// but most likely in a wrong unit; usually none.
[[nodiscard]] inline std::vector<std::string> doubts(Profile const& profile) {
  std::vector<std::string> found = profile.warnings;
  for (std::size_t i = 0; i < profile.layers.size(); ++i) {
    Layer const& layer = profile.layers[i];
    for (auto const& [field, value] :
         {std::pair{"forward_s", layer.forward_s}, std::pair{"backward_s", layer.backward_s}})
      if (value > 3600)
        found.push_back(text(detail::name_of(layer, i), " has ", field, " = ", value,
                             " s, more than an hour; times are in seconds"));
  }
  return found;
}

}  // namespace stagger::cluster
