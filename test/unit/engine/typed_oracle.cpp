// SPDX-License-Identifier: Apache-2.0
#include "typed_oracle.hpp"

#include "typed_loops.hpp"

namespace small_model {

Orders orders_of(Table const& table, std::vector<int> const& first_layer) {
  Orders orders;
  orders.gradient.resize(layers);
  orders.weight.resize(layers);
  for (int r = 0; r < table.ranks(); ++r) {
    for (Action const& a : table.row(r)) {
      auto const s = static_cast<std::size_t>(a.stage);
      int const end = s + 1 < first_layer.size() ? first_layer[s + 1] : layers;
      for (int l = first_layer[s]; l < end; ++l) {
        auto const add = [&](Orders::Order& order) {
          order.resize(static_cast<std::size_t>(table.ranks()));
          order[static_cast<std::size_t>(r)].push_back(a.microbatch * table.slices + a.slice);
        };
        if (sg::schedule::gives_input_gradient(a.kind))
          add(orders.gradient[static_cast<std::size_t>(l)]);
        if (sg::schedule::ends_flight(a.kind)) add(orders.weight[static_cast<std::size_t>(l)]);
      }
    }
  }
  return orders;
}

Course expected_course(std::vector<Batch> const& batches, bool clips, Orders const& orders) {
  Oracle oracle(optimizer(), clips ? std::optional<double>(clip) : std::nullopt, run_seed,
                Embedding{}, Dense{}, Curve{}, Squash{}, Dropout{}, Norm{}, Dense{7});
  return course_of(oracle, batches,
                   [&](auto& one, Batch const& batch) { return one.step(batch, orders); });
}

Trainer pipeline(sg::host::Threads device, std::vector<int> cuts, Made schedule,
                 sg::Options options) {
  return small_model::pipeline<sg::host::Threads>(device, std::move(cuts), std::move(schedule),
                                                  std::move(options));
}
Trainer pipeline(sg::sim::VirtualClock device, std::vector<int> cuts, Made schedule,
                 sg::Options options) {
  return small_model::pipeline<sg::sim::VirtualClock>(std::move(device), std::move(cuts),
                                                      std::move(schedule), std::move(options));
}

int first_difference(Trainer& train, std::vector<Batch> const& batches, Course const& course) {
  return small_model::first_difference<Trainer>(train, batches, course);
}

}  // namespace small_model
