// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The threshold above which it pays to split a layer, of a measured model and link.

#include <cstddef>

#include <stagger/cluster/cluster.hpp>
#include <stagger/cluster/profile.hpp>
#include <stagger/core/error.hpp>
#include <stagger/partition/split_plan.hpp>

namespace stagger::partition {

/// SplitRules::threshold for a rank and a link as measured: the operations per second of those
/// layers that can be split, forward and backward together, over the elements per second of the
/// link. The link's start-up time is left out, as it is where layers are weighed.
///
/// @code
///     double const threshold = partition::measured_threshold(
///         describe(train), Profiler{{.samples = 16}}.measure(one, input, target), 16,
///         host::probe().link());
/// @endcode
/// @param chain          the layers, before they are split
/// @param profile        of these layers, as Profiler measures it
/// @param rows           that the layers' inputs had when it was measured
/// @param element_bytes  of an element that members exchange
/// @throws Error  bad_configuration if no layer can be split, a layer is not in the profile, or
///                those that can be split took no time
[[nodiscard]] inline double measured_threshold(SplitChain const& chain,
                                               cluster::Profile const& profile, std::size_t rows,
                                               cluster::Link const& link,
                                               std::size_t element_bytes = sizeof(float)) {
  double operations = 0;
  double seconds = 0;
  int counted_layer = -1;
  for (std::size_t l = 0; l < chain.layers.size(); ++l) {
    LayerFeatures const& layer = chain.layers[l];
    if (layer.inputs == 0 || layer.outputs == 0) continue;
    int const number = chain.number(l);
    if (number >= profile.size())
      raise(Errc::bad_configuration, "layer ", number, " of the model is not in a profile of ",
            counted(profile.size(), "layer"), "; measure the model that is to be split");
    operations +=
        operations_per_element(layer) * static_cast<double>((layer.inputs + layer.outputs) * rows);
    if (number != counted_layer)
      seconds += profile.layer(number).forward_s + profile.layer(number).backward_s;
    counted_layer = number;
  }
  if (!(operations > 0))
    raise(
        Errc::bad_configuration,
        "no layer of the model can be split, so nothing says how many operations a rank does in a "
        "second; give SplitRules::threshold as a number");
  if (!(seconds > 0))
    raise(Errc::bad_configuration, "the layers that can be split took ", seconds,
          " s; measure them with more rows");
  return operations / seconds / (link.bytes_per_s / static_cast<double>(element_bytes));
}

}  // namespace stagger::partition
