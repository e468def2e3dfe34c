// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   examples/vgg on 2 ranks, which share its dense layers as a group or are replicas.

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <stagger/engine/groups.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/stagger.hpp>

#include <vgg/images.hpp>
#include <vgg/model/model.hpp>

#include "rows.hpp"

namespace bench {

/// Two microbatches, of more images where the network is small.
[[nodiscard]] inline vgg::ModelShape vgg_shape(std::ptrdiff_t width) {
  return {.width = width, .minibatch = {width < 64 ? std::size_t{32} : std::size_t{16}, 2}};
}

/// @param group  1: two replicas
template <class Device> auto vgg_pipeline(vgg::ModelShape const& shape, int group, Device device) {
  return stagger::Pipeline{vgg::make_model<float>(shape, 1)}.with(
      stagger::partition::LayerSplit{.group = group}, stagger::schedule::OneFOneB{},
      stagger::optimizer::Sgd{.rate = 0.01}, stagger::loss::CrossEntropy<float>{},
      std::move(device), stagger::Options{.replicas = {2}});
}

[[nodiscard]] inline vgg::Batch vgg_batch(vgg::ModelShape const& shape) {
  vgg::Batch batch;
  vgg::make_textures(1, 100, 10).training.draw(1, 0, shape.minibatch, batch);
  return batch;
}

/// The share of the ranks' time in a step that they exchange, or wait for each other to do so.
[[nodiscard]] inline double exchanging(stagger::schedule::Timeline const& timeline) {
  double end_s = 0;
  double exchange_s = 0;
  for (auto const& span : timeline.spans) {
    end_s = std::max(end_s, span.end_s);
    exchange_s += span.exchange_s;
  }
  return exchange_s / (end_s * timeline.ranks());
}

/// The throughput of a group over that of replicas, from the time and the counters "replicas_ms",
/// "of_replicas" and "exchanging" of a benchmark.
[[nodiscard]] inline Row vgg_row(std::string const& what, std::string const& name, double least) {
  return {what + ", a group of 2 against 2 replicas", name, [=](Results const& results) {
            double const share = results.counter(name, "of_replicas");
            return Line{
                text("%.1f ms, %.1f ms: %.2f of their throughput; the paper's cluster 0.95; "
                     "exchanges take %.1f %% of the step",
                     1e3 * results.time_s(name), results.counter(name, "replicas_ms"), share,
                     100 * results.counter(name, "exchanging")),
                text("at least %.2f", least), share >= least ? Grade::passed : Grade::failed};
          }};
}

}  // namespace bench
