// SPDX-License-Identifier: Apache-2.0
#include "row_oracle.hpp"

#include <map>

#include "typed_loops.hpp"

namespace row_model {

std::size_t border(std::vector<std::size_t> const& weights, std::size_t rows, std::size_t k) {
  std::size_t before = 0;
  std::size_t total = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    before += i < k ? weights[i] : 0;
    total += weights[i];
  }
  return rows * before / total;
}

namespace {

/// The other way round: every row of `part` into a value of `rows` rows of the microbatch.
void put(Matrix& value, std::size_t rows, std::size_t first, Matrix const& part,
         std::size_t count) {
  if (value.size() != part.size() / count * rows)
    value.resize({part.extent(0) / count * rows, part.extent(1)});
  for (std::size_t i = 0; i < part.size(); ++i) value[part.size() / count * first + i] = part[i];
}

template <class Optimizer, class... L> class RowOracle : public Oracle<Optimizer, L...> {
  using Base = Oracle<Optimizer, L...>;

 public:
  using Base::Base;

  sg::Metrics step(Batch const& batch, Orders const& orders, Weights const& weights) {
    batch_ = &batch;
    orders_ = &orders;
    weights_ = &weights;
    sg::Metrics metrics;
    std::size_t const M = batch.inputs.size();
    for (auto const& target : batch.targets) metrics.terms += static_cast<double>(target.size());
    this->context_.begin_step(this->steps_, this->seed_, true);
    for (auto& values : y_) values.assign(M, {});
    for (auto& values : dy_) values.assign(M, {});
    saved_ = {};
    Base::each([&](auto index) { forward<index()>(); });
    double sum = 0;
    for (std::size_t m = 0; m < M; ++m)
      each_replica(count - 1, m, [&](std::size_t n, std::size_t first, std::size_t last) {
        Matrix dy;
        sum +=
            Loss{}.value_and_gradient(this->context_, cut(y_[count - 1][m], n, first, last),
                                      cut(batch.targets[m], n, first, last), 1 / metrics.terms, dy);
        put(dy_[count - 1][m], n, first, dy, last - first);
      });
    metrics.loss = sum / metrics.terms;
    downwards<count - 1>();
    this->update(metrics);
    return metrics;
  }

 private:
  static constexpr std::size_t count = sizeof...(L);
  static constexpr std::size_t most_replicas = 64;

  [[nodiscard]] std::size_t position_of(std::size_t layer, std::size_t m) const {
    auto const& owners = orders_->gradient[layer];
    for (std::size_t p = 0; p < owners.size(); ++p)
      for (int const own : owners[p])
        if (own == static_cast<int>(m)) return p;
    return owners.size();
  }

  /// Calls `body(rows of the microbatch, first, last)`.
  template <class Body>
  void one_replica(std::size_t layer, std::size_t m, std::size_t k, Body body) {
    auto const& weights = (*weights_)[position_of(layer, m)];
    std::size_t const rows = batch_->inputs[m].extent(0);
    body(rows, border(weights, rows, k), border(weights, rows, k + 1));
  }
  template <class Body> void each_replica(std::size_t layer, std::size_t m, Body body) {
    std::size_t const replicas = (*weights_)[position_of(layer, m)].size();
    for (std::size_t k = 0; k < replicas; ++k) one_replica(layer, m, k, body);
  }

  template <std::size_t I> auto const& input_of(std::size_t m) const {
    if constexpr (I == 0)
      return batch_->inputs[m];
    else
      return y_[I - 1][m];
  }

  template <std::size_t I> void begin_rows(std::size_t m, std::size_t first) {
    first_rows_.assign(m + 1, first);
    this->template begin<I>(m);
    this->context_.set_first_rows(first_rows_.data());
  }

  template <std::size_t I> void forward() {
    auto& layer = std::get<I>(this->layers_);
    for (std::size_t m = 0; m < batch_->inputs.size(); ++m)
      each_replica(I, m, [&](std::size_t n, std::size_t first, std::size_t last) {
        Matrix y;
        begin_rows<I>(m, first);
        layer.forward(this->context_, cut(input_of<I>(m), n, first, last), y,
                      std::get<I>(saved_)[{m, first}]);
        put(y_[I][m], n, first, y, last - first);
      });
  }

  Orders::Order by_replica(Orders::Order const& positions) const {
    Orders::Order result;
    for (std::size_t p = 0; p < positions.size(); ++p)
      for (std::size_t k = 0; k < (*weights_)[p].size() && !positions[p].empty(); ++k) {
        result.emplace_back();
        for (int const m : positions[p])
          result.back().push_back(m * static_cast<int>(most_replicas) + static_cast<int>(k));
      }
    return result;
  }

  template <std::size_t I> void downwards() {
    auto& layer = std::get<I>(this->layers_);
    using Layer = std::remove_reference_t<decltype(layer)>;
    auto const backward = [&](bool weight) {
      return [&, weight](std::size_t code) {
        std::size_t const m = code / most_replicas;
        one_replica(I, m, code % most_replicas,
                    [&](std::size_t n, std::size_t first, std::size_t last) {
                      auto const x = cut(input_of<I>(m), n, first, last);
                      auto const dy = cut(dy_[I][m], n, first, last);
                      auto& saved = std::get<I>(saved_)[{m, first}];
                      begin_rows<I>(m, first);
                      if (weight) {
                        if constexpr (sg::HasBackwardWeight<Layer>)
                          layer.backward_weight(this->context_, x, dy, saved);
                        return;
                      }
                      if constexpr (I > 0) {
                        Matrix dx;
                        if constexpr (sg::HasBackwardInput<Layer>)
                          layer.backward_input(this->context_, x, dy, dx, saved);
                        else
                          layer.backward(this->context_, x, dy, dx, saved);
                        put(dy_[I - 1][m], n, first, dx, last - first);
                      }
                    });
      };
    };
    this->template owner_by_owner<I>(by_replica(orders_->gradient[I]), backward(false));
    if constexpr (sg::HasBackwardWeight<Layer>)
      this->template owner_by_owner<I>(by_replica(orders_->weight[I]), backward(true));
    if constexpr (I > 0) downwards<I - 1>();
  }

  Batch const* batch_ = nullptr;
  Orders const* orders_ = nullptr;
  Weights const* weights_ = nullptr;
  std::array<std::vector<Matrix>, count> y_, dy_;  // [layers][microbatches] whole
  // [layers] by microbatch and first row
  std::tuple<std::map<std::pair<std::size_t, std::size_t>, sg::SavedOf<L>>...> saved_;
  std::vector<std::size_t> first_rows_;
};

}  // namespace

Course expected_course(std::vector<Batch> const& batches, bool clips, Orders const& orders,
                       Weights const& weights, AnyOptimizer const& update) {
  RowOracle<AnyOptimizer, Embedding, Dense, Curve, RowDropout, Dense, Curve, Dense> oracle(
      update, clips ? std::optional<double>(clip) : std::nullopt, run_seed, Embedding{}, Dense{},
      Curve{}, RowDropout{}, Dense{5}, Curve{}, Dense{7});
  return course_of(oracle, batches,
                   [&](auto& one, Batch const& batch) { return one.step(batch, orders, weights); });
}

Trainer pipeline(sg::host::Threads device, std::vector<int> cuts, Made schedule,
                 sg::Options options) {
  return row_model::pipeline<sg::host::Threads>(device, std::move(cuts), std::move(schedule),
                                                std::move(options));
}
Trainer pipeline(sg::sim::VirtualClock device, std::vector<int> cuts, Made schedule,
                 sg::Options options) {
  return row_model::pipeline<sg::sim::VirtualClock>(std::move(device), std::move(cuts),
                                                    std::move(schedule), std::move(options));
}

}  // namespace row_model
