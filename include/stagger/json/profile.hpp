// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Profiles as JSON files.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include <stagger/cluster/graph_txt.hpp>
#include <stagger/cluster/profile.hpp>
#include <stagger/core/error.hpp>
#include <stagger/json/document.hpp>

namespace stagger::json {

/// The use for which a profile is read.
enum class ProfileUse : std::uint8_t {
  planning,   ///< every field is needed
  gradients,  ///< only times and parameters: batch and activation_bytes may be missing
};

namespace detail {

/// The time of the weight gradient within a backward pass, if it is given.
inline void read_weight(Field const& from, double backward_s, std::optional<double>& to) {
  if (!from.has("backward_weight_s")) return;
  Field const field = from.at("backward_weight_s");
  to = field.number();
  if (*to > backward_s)
    field.refuse(text(", more than its layer's backward_s = ", backward_s, "; give a part of it"));
}

[[nodiscard]] inline cluster::Layer read_layer(Field const& field, ProfileUse use) {
  cluster::Layer layer;
  if (field.has("name")) layer.name = field.at("name").string();
  layer.forward_s = field.at("forward_s").number();
  layer.backward_s = field.at("backward_s").number();
  read_weight(field, layer.backward_s, layer.backward_weight_s);
  if (use == ProfileUse::planning || field.has("activation_bytes"))
    layer.activation_bytes = field.at("activation_bytes").bytes();
  layer.parameter_bytes = field.at("parameter_bytes").bytes();
  if (field.has("stash_bytes")) layer.stash_bytes = field.at("stash_bytes").bytes();
  if (field.has("by_device"))
    for (auto const& [kind, times] : field.at("by_device").members()) {
      cluster::DeviceTimes there{.kind = kind,
                                 .forward_s = times.at("forward_s").number(),
                                 .backward_s = times.at("backward_s").number(),
                                 .backward_weight_s = {}};
      read_weight(times, there.backward_s, there.backward_weight_s);
      layer.by_device.push_back(std::move(there));
    }
  return layer;
}

}  // namespace detail

/// Reads `{"name", "batch", "device", "layers": [{"name", "forward_s", "backward_s",
/// "activation_bytes", "parameter_bytes"}, ...]}`; optional for a layer: "backward_weight_s",
/// "stash_bytes", "by_device". Names may be left out, keys that are not known are ignored.
/// @param  source  the name of the file in error messages
/// @throws Error   bad_data naming file, line, field and value
[[nodiscard]] inline cluster::Profile read_profile(std::string text, std::string source,
                                                   ProfileUse use = ProfileUse::planning) {
  Field const file = Field::parse(std::move(text), std::move(source));
  cluster::Profile profile;
  if (!file.has("layers"))
    raise(Errc::bad_data, file.source(),
          " is no profile: it needs \"layers\": [{...}, ...] with one or more layers");
  if (file.has("name")) profile.name = file.at("name").string();
  if (file.has("device")) profile.device = file.at("device").string();
  if (use == ProfileUse::planning || file.has("batch"))
    profile.batch = file.at("batch").integer(1, std::numeric_limits<int>::max());
  for (Field const& layer : file.at("layers").elements())
    profile.layers.push_back(detail::read_layer(layer, use));
  if (profile.layers.empty()) file.at("layers").refuse("; give one or more layers");
  return profile;
}

/// Reads either form of a profile: JSON, or PipeDream's graph.txt.
/// @param batch  samples that a graph.txt is for, which it does not say; JSON says it itself
/// @throws Error  bad_data naming file, line, field and value; bad_configuration for a graph.txt
///                without a batch, unless only gradients are wanted
[[nodiscard]] inline cluster::Profile read_any_profile(std::string text, std::string source,
                                                       ProfileUse use = ProfileUse::planning,
                                                       std::optional<int> batch = {}) {
  if (!cluster::is_graph_txt(text)) return read_profile(std::move(text), std::move(source), use);
  if (!batch && use == ProfileUse::planning)
    raise(Errc::bad_configuration, source,
          " does not say for how many samples its times and sizes are; give read_any_profile the "
          "batch that was profiled");
  return cluster::read_graph_txt(text, source, batch.value_or(1));
}

/// The profile in the format of `read_profile`, one layer on each line.
[[nodiscard]] inline std::string write_profile(cluster::Profile const& profile) {
  cluster::require_profile(profile);
  std::string out = "{\"name\": " + detail::line_of_json(profile.name) +
                    ", \"batch\": " + std::to_string(profile.batch) +
                    ", \"device\": " + detail::line_of_json(profile.device) + ", \"layers\": [";
  for (std::size_t i = 0; i < profile.layers.size(); ++i) {
    cluster::Layer const& layer = profile.layers[i];
    Value line = {{"name", layer.name},
                  {"forward_s", layer.forward_s},
                  {"backward_s", layer.backward_s},
                  {"activation_bytes", layer.activation_bytes},
                  {"parameter_bytes", layer.parameter_bytes}};
    if (layer.backward_weight_s) line["backward_weight_s"] = *layer.backward_weight_s;
    if (layer.stash_bytes) line["stash_bytes"] = *layer.stash_bytes;
    for (cluster::DeviceTimes const& d : layer.by_device) {
      Value& there = line["by_device"][d.kind];
      there = {{"forward_s", d.forward_s}, {"backward_s", d.backward_s}};
      if (d.backward_weight_s) there["backward_weight_s"] = *d.backward_weight_s;
    }
    out += text(i == 0 ? "\n  " : ",\n  ", detail::line_of_json(line));
  }
  return out + "\n]}\n";
}

}  // namespace stagger::json
