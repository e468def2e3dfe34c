// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Parameters as the engine stores them: values, gradients, optimizer state.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/list.hpp>
#include <stagger/engine/add_up.hpp>
#include <stagger/engine/detail/layer_shape.hpp>
#include <stagger/engine/detail/optimizer_call.hpp>
#include <stagger/engine/parameter_memory.hpp>
#include <stagger/engine/parameter_state.hpp>
#include <stagger/model/context.hpp>
#include <stagger/model/optimizer.hpp>

namespace stagger::detail {

/// The parameters of one layer. Values, gradients and state are contiguous, each parameter on a
/// boundary of `alignment_bytes`, so that gradients can be reduced in one message and sums do not
/// depend on where they lie.
class LayerParameters : public LayerShape {
 public:
  /// Takes over what a layer declares.
  /// @param memory  where to keep it; null: on the host
  /// @param shards  no state before hold_states() says of what
  /// @param whole   else nothing, until hold()
  [[gnu::cold]] void adopt(List<ParameterDeclaration> declarations, int layer, int states,
                           ParameterMemory const* memory = nullptr, bool shards = false,
                           bool whole = true) {
    declare(std::move(declarations), layer, states);
    memory_ = memory;
    values_.resize(1);
    shards_ = shards;
    if (!shards) held_ = {0, size_};
    if (whole)
      hold();
    else
      add_views(0);
    square_sums_.resize(declarations_.size());
  }

  /// Where states are shared out: this part of the layer has them here, zeros at first, and memory
  /// for what it was before an update.
  /// @return  whether it has, or had none before
  [[gnu::cold]] bool hold_states(ByteRange range) {
    bool const first = held_.last == 0;
    if (!first && (range.first != held_.first || range.last != held_.last)) return false;
    held_ = range;
    std::size_t const bytes = range.last - range.first;
    bool const saves = saved_values_.size() == bytes;
    if (!saves) saved_values_.make(memory_, bytes);
    for (std::size_t s = 0; s < static_cast<std::size_t>(states_); ++s) {
      if (first) state_[s].make(memory_, bytes);
      if (!saves) saved_state_[s].make(memory_, bytes);
    }
    return true;
  }
  /// Remembers values and state of a part that has them here; or brings them back.
  [[gnu::noinline]] void copy_part(ByteRange part, bool back) noexcept {
    auto const copy = [&](ParameterBlock const& now, ParameterBlock const& saved, std::size_t at) {
      std::byte* const here = now.data() + at;
      std::byte* const there = saved.data() + (part.first - held_.first);
      if (part.first < part.last)
        std::memcpy(back ? here : there, back ? there : here, part.last - part.first);
    };
    copy(values_[0], saved_values_, part.first);
    for (std::size_t s = 0; s < static_cast<std::size_t>(states_); ++s)
      copy(state_[s], saved_state_[s], part.first - held_.first);
  }

  /// Makes what there is no memory for: gradients and state as zeros, values as they are before the
  /// first step; those that were here and were released are zeros too.
  /// @return whether that was anything
  [[gnu::cold]] bool hold() {
    if (std::exchange(present_, true)) return false;
    for (auto& version : values_)
      if (version.size() != size_) version.make(memory_, size_);
    set_first_values();
    gradients_.make(memory_, size_);
    for (int s = 0; !shards_ && s < states_; ++s)
      state_[static_cast<std::size_t>(s)].make(memory_, size_);
    views_.clear();
    for (std::size_t v = 0; v < values_.size(); ++v) add_views(v);
    return true;
  }
  /// Gives all memory back, where another process runs the layer.
  [[gnu::cold]] void release() noexcept {
    for (auto& d : declarations_) d.initial = {};
    if (values_[0].size() == 0) return;
    for (auto& version : values_) version = {};
    for (auto* const block : {&gradients_, &saved_values_, &saved_state_[0], &saved_state_[1]})
      *block = {};
    if (!shards_) state_ = {};
    for (auto& view : views_) view.value = view.gradient = nullptr;
    present_ = false;
  }

  /// Makes room for so many versions of the values. Version 0 is the one that lasts.
  void reserve_versions(std::size_t count) {
    while (values_.size() < count) {
      ParameterBlock version;
      version.make(memory_, values_[0].size());
      views_.reserve(views_.size() + this->count());
      values_.push_back(std::move(version));
      add_views(values_.size() - 1);
    }
  }

  /// Moves all of it to another memory, between steps; so no step is under way, and none of the
  /// memories is the host's own.
  [[gnu::cold]] void move_to(ParameterMemory const* memory) {
    if (memory == memory_) return;
    for (auto& values : values_) values.move_to(memory);
    for (auto* const block :
         {&gradients_, &state_[0], &state_[1], &saved_values_, &saved_state_[0], &saved_state_[1]})
      block->move_to(memory);
    memory_ = memory;
    views_.clear();
    for (std::size_t v = 0; v < values_.size(); ++v) add_views(v);
  }

  /// What a context shows to the layer, [versions][parameters].
  [[nodiscard]] ParameterView const* views() const noexcept { return views_.data(); }

  /// Remembers values and state, or brings them back.
  void save() {
    saved_values_.copy_from(values_[0]);
    for (std::size_t s = 0; s < state_.size(); ++s) saved_state_[s].copy_from(state_[s]);
  }
  void restore() {
    values_[0].copy_from(saved_values_);
    for (std::size_t s = 0; s < state_.size(); ++s) state_[s].copy_from(saved_state_[s]);
  }

  void zero_gradients() noexcept { gradients_.zero(); }

  /// The gradients of another owner of the layer: memory of their own beside the same values.
  class Share {
   public:
    void of(LayerParameters& parameters) {
      views_.assign(parameters.views_.data(), parameters.count());
      gradients_.make(parameters.memory_, parameters.present_ ? parameters.size_ : 0);
      for (std::size_t i = 0; i < views_.size(); ++i)
        views_[i].gradient = at(gradients_, parameters.offsets_[i]);
    }
    [[nodiscard]] ParameterView const* views() const noexcept { return views_.data(); }
    [[nodiscard]] std::uint64_t bytes() const noexcept {
      return gradients_.size() + values_.size() + received_.size() + state_[0].size() +
             state_[1].size();
    }
    void zero() noexcept { gradients_.zero(); }
    void release() noexcept { gradients_ = {}; }

    // Of an owner whose memory is not that of the first one's.

    /// Moves it, between steps. Apart from the first owner it gets values of its own, and the first
    /// owner a place where its gradients arrive.
    [[gnu::cold]] void move_to(LayerParameters const& parameters, ParameterMemory const* memory) {
      bool const apart = memory != parameters.memory_;
      gradients_.move_to(memory);
      values_.make(memory, apart ? gradients_.size() : 0);
      received_.make(parameters.memory_, apart ? gradients_.size() : 0);
      for (auto& block : state_) block.make(nullptr, 0);
      for (std::size_t i = 0; i < views_.size(); ++i) {
        auto* const values = apart ? values_.data() : parameters.values_[0].data();
        views_[i].value = values + parameters.offsets_[i];
        views_[i].gradient = gradients_.data() + parameters.offsets_[i];
      }
      take_values(parameters);
    }
    /// Brings its own values up to date, if it has any.
    [[gnu::cold]] void take_values(LayerParameters const& parameters) {
      values_.take_from(parameters.values_[0]);
      for (std::size_t s = 0; s < state_.size(); ++s) state_[s].take_from(parameters.state_[s]);
    }
    /// From now on it updates its own values, if it has any, as the first owner does.
    [[gnu::cold]] void hold_states(LayerParameters const& parameters) {
      for (std::size_t s = 0; s < state_.size() && values_.size() != 0; ++s) {
        state_[s].make(values_.memory(), parameters.state_[s].size());
        state_[s].take_from(parameters.state_[s]);
      }
    }
    /// Calls `update()` with its gradients, values and states in place of the first owner's.
    template <class Update> void stand_in(LayerParameters& parameters, Update update) noexcept {
      exchange(parameters);
      update();
      exchange(parameters);
    }
    [[nodiscard]] std::span<std::byte> gradients() const noexcept {
      return {gradients_.data(), gradients_.size()};
    }
    /// Where its gradients arrive, in the memory of the first owner.
    [[nodiscard]] std::span<std::byte> received() const noexcept {
      return {received_.data(), received_.size()};
    }
    [[nodiscard]] std::span<std::byte> values() const noexcept {
      return {values_.data(), values_.size()};
    }

   private:
    friend LayerParameters;
    void exchange(LayerParameters& parameters) noexcept {
      for (std::size_t i = 0; i < views_.size(); ++i) std::swap(views_[i], parameters.views_[i]);
      std::swap(gradients_, parameters.gradients_);
      if (values_.size() == 0) return;
      for (std::size_t s = 0; s < state_.size(); ++s) std::swap(state_[s], parameters.state_[s]);
    }
    List<ParameterView> views_;  // [parameters]
    ParameterBlock gradients_;
    ParameterBlock values_, received_;     // of an owner apart
    std::array<ParameterBlock, 2> state_;  // of one who updates, too
  };

  /// Where they lie; null: on the host.
  [[nodiscard]] ParameterMemory const* memory() const noexcept { return memory_; }
  /// The lasting values and the optimizer's state, there.
  [[nodiscard]] std::array<std::span<std::byte>, 3> blocks() const noexcept {
    return {{values(), {state_[0].data(), state_[0].size()}, {state_[1].data(), state_[1].size()}}};
  }
  /// The lasting values, there.
  [[nodiscard]] std::span<std::byte> values() const noexcept {
    return {values_[0].data(), values_[0].size()};
  }

  /// Adds what other owners have summed up, in their order.
  void add(std::span<Share const* const> shares, ByteRange range = {}) {
    for (std::size_t i = 0; i < count(); ++i) {
      if (memory_ != nullptr)
        for (Share const* const share : shares) add_there(i, *share, range);
      else if (declarations_[i].type == ElementType::f32)
        add_gradients<float>(i, shares, elements<float>(i, range));
      else
        add_gradients<double>(i, shares, elements<double>(i, range));
    }
  }
  void add(Share const& share) {
    Share const* const one = &share;
    add({&one, 1});
  }
  /// Owners whose gradients are added in one pass over the sum.
  static constexpr std::size_t most_shares = 15;

  /// Sum of squares of a parameter's gradient: one sum per parameter, so that any cut adds the
  /// same numbers.
  /// @param sums   [count()] where they go in memory of a back end; unused on the host
  /// @param range  of the layer: goes on with the sum of the elements before it
  void sum_squares(std::size_t i, double* sums = nullptr, ByteRange range = {}) {
    if (memory_ != nullptr)
      memory_->sum_squares(*memory_, declarations_[i].type, views_[i].gradient, views_[i].size,
                           sums + i);
    else if (double const before = range.first > offsets_[i] ? square_sums_[i] : 0;
             declarations_[i].type == ElementType::f32)
      square_sums_[i] = sum_squares_of<float>(views_[i], elements<float>(i, range), before);
    else
      square_sums_[i] = sum_squares_of<double>(views_[i], elements<double>(i, range), before);
  }
  void sum_squares() {
    for (std::size_t i = 0; i < count(); ++i) sum_squares(i);
  }
  [[nodiscard]] std::span<double const> square_sums() const noexcept { return square_sums_; }
  /// For those that another process has summed.
  [[nodiscard]] std::span<double> received_square_sums() noexcept { return square_sums_; }

  /// One optimizer step on every parameter, from one version of the values to another or the same;
  /// then gradients are zero.
  template <OptimizerPolicy O> void update(O const& optimizer, UpdateStep const& step) noexcept;

  /// Shows values, and if `whole` state, to the host: themselves, or a copy that `take_back` brings
  /// home.
  void append_states(std::vector<ParameterState>& states, bool whole = true) {
    if (whole) hold();
    if (memory_ != nullptr) fetch_copy();
    int const shown = whole ? states_ : 0;
    if (shards_ && whole) spread_states();
    auto& values = memory_ != nullptr ? host_copy_[0] : values_[0];
    auto* const first_state = memory_ != nullptr || shards_ ? &host_copy_[1] : state_.data();
    for (std::size_t i = 0; i < declarations_.size(); ++i) {
      auto const& d = declarations_[i];
      std::size_t const bytes = d.size * element_bytes(d.type);
      ParameterState state;
      state.name = std::to_string(layer_) + "." + d.name;
      state.type = d.type;
      state.value = {values.data() + offsets_[i], bytes};
      for (std::size_t s = 0; s < static_cast<std::size_t>(shown); ++s)
        state.state[s] = {first_state[s].data() + offsets_[i], bytes};
      states.push_back(std::move(state));
    }
  }

  /// Likewise, where the layer is here; else names without values.
  void append_own(std::vector<ParameterState>& states) {
    if (present_) return append_states(states);
    for (std::size_t i = 0; i < count(); ++i) {
      ParameterShape const known = shape(i);
      states.push_back({known.name, known.type, {}, {}});
    }
  }
  /// State `s` of what has it here.
  [[nodiscard]] std::span<std::byte> held_state(std::size_t s, ByteRange range) const noexcept {
    return {state_[s].data() + (range.first - held_.first), range.last - range.first};
  }

  /// What the host may have written into the copy that it was shown.
  [[gnu::cold]] void take_back() {
    if (shards_) return gather_states();
    if (host_copy_[0].size() == 0) return;
    memory_->upload(*memory_, values_[0].data(), host_copy_[0].data(), values_[0].size());
    for (std::size_t s = 0; s < static_cast<std::size_t>(states_); ++s)
      memory_->upload(*memory_, state_[s].data(), host_copy_[s + 1].data(), state_[s].size());
  }

  /// Where states are shared out, the copy that the host is shown: state `s` of the whole layer.
  [[nodiscard]] std::span<std::byte> shown_state(std::size_t s, ByteRange range) const noexcept {
    if (host_copy_[s + 1].size() == 0) return {};
    return {host_copy_[s + 1].data() + range.first, range.last - range.first};
  }
  [[nodiscard]] std::span<std::byte> value_bytes_of(ByteRange range) const noexcept {
    return {values_[0].data() + range.first, range.last - range.first};
  }

  [[nodiscard]] std::uint64_t state_bytes() const noexcept {
    return state_[0].size() + state_[1].size();
  }

  /// Values, gradients and state together, in bytes.
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    std::uint64_t sum = gradients_.size() + state_[0].size() + state_[1].size() +
                        saved_values_.size() + saved_state_[0].size() + saved_state_[1].size();
    for (auto const& version : values_) sum += version.size();
    return sum;
  }

 private:
  static std::byte* at(ParameterBlock const& block, std::size_t offset) noexcept {
    return block.size() == 0 ? nullptr : block.data() + offset;
  }

  [[gnu::cold]] void set_first_values() {
    for (std::size_t i = 0; i < count(); ++i) {
      ParameterDeclaration& d = declarations_[i];
      std::byte* const to = at(values_[0], offsets_[i]);
      if (d.fill != nullptr && memory_ == nullptr) {
        d.fill(d, to);
      } else if (d.fill != nullptr) {
        d.initial.resize(value_bytes(i));
        d.fill(d, d.initial.data());
      }
      if (!d.initial.empty() && memory_ != nullptr)
        memory_->upload(*memory_, to, d.initial.data(), d.initial.size());
      else if (!d.initial.empty())
        std::memcpy(to, d.initial.data(), d.initial.size());
      d.initial = {};
      d.fill = nullptr;
    }
  }

  [[gnu::cold]] void add_there(std::size_t i, Share const& share, ByteRange range) {
    std::size_t const each = element_bytes(declarations_[i].type);
    auto const [first, last] =
        each == sizeof(float) ? elements<float>(i, range) : elements<double>(i, range);
    if (first >= last) return;
    auto* const more = share.received_.size() != 0
                           ? share.received_.data() + offsets_[i]
                           : static_cast<std::byte*>(share.views_[i].gradient);
    memory_->add(*memory_, declarations_[i].type,
                 static_cast<std::byte*>(views_[i].gradient) + first * each, more + first * each,
                 last - first);
  }

  /// Shared out: a copy of the whole, of which only the part that is here is true unless others
  /// send theirs.
  [[gnu::cold]] void spread_states() {
    for (std::size_t s = 0; s < static_cast<std::size_t>(states_); ++s) {
      if (host_copy_[s + 1].size() != 0 || gradients_.size() == 0) continue;
      host_copy_[s + 1].make(nullptr, gradients_.size());
      if (state_[s].size() != 0)
        std::memcpy(host_copy_[s + 1].data() + held_.first, state_[s].data(), state_[s].size());
    }
  }
  [[gnu::cold]] void gather_states() {
    for (std::size_t s = 0; s < static_cast<std::size_t>(states_); ++s) {
      if (host_copy_[s + 1].size() == 0) continue;
      if (state_[s].size() != 0)
        std::memcpy(state_[s].data(), host_copy_[s + 1].data() + held_.first, state_[s].size());
      host_copy_[s + 1].make(nullptr, 0);
    }
  }
  [[gnu::cold]] void fetch_copy() {
    for (std::size_t s = 0; s < 1 + static_cast<std::size_t>(states_); ++s) {
      auto const& from = s == 0 ? values_[0] : state_[s - 1];
      if (host_copy_[s].size() != from.size()) host_copy_[s].make(nullptr, from.size());
      if (from.size() != 0)
        memory_->download(*memory_, host_copy_[s].data(), from.data(), from.size());
    }
  }

  /// Elements of a parameter within a range of the layer's memory.
  template <class T>
  [[nodiscard]] ByteRange elements(std::size_t i, ByteRange range) const noexcept {
    std::size_t const size = views_[i].size;
    auto const within = [&](std::size_t byte) {
      return byte <= offsets_[i] ? 0 : std::min(size, (byte - offsets_[i]) / sizeof(T));
    };
    return {within(range.first), within(range.last)};
  }

  /// @pre  at most most_shares
  template <class T>
  void add_gradients(std::size_t i, std::span<Share const* const> shares,
                     ByteRange elements) noexcept {
    if (elements.first >= elements.last) return;
    std::array<T const*, most_shares> more;
    for (std::size_t s = 0; s < shares.size(); ++s)
      more[s] = static_cast<T const*>(shares[s]->views_[i].gradient) + elements.first;
    add_up(static_cast<T*>(views_[i].gradient) + elements.first, more.data(), shares.size(),
           elements.last - elements.first);
  }

  template <class T>
  static double sum_squares_of(ParameterView const& view, ByteRange elements, double sum) noexcept {
    auto const* const gradient = static_cast<T const*>(view.gradient);
    for (std::size_t i = elements.first; i < elements.last; ++i)
      sum += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
    return sum;
  }

  void add_views(std::size_t version) {
    for (std::size_t i = 0; i < declarations_.size(); ++i)
      views_.push_back(
          {at(values_[version], offsets_[i]), at(gradients_, offsets_[i]), declarations_[i].size});
  }

  template <class T>
  [[nodiscard]] OptimizerView<T> view(std::size_t i, UpdateStep const& step) noexcept {
    OptimizerView<T> v;
    auto const [first, last] = elements<T>(i, step.range);
    v.value = static_cast<T const*>(views_[step.from * count() + i].value) + first;
    v.next = static_cast<T*>(views_[step.to * count() + i].value) + first;
    v.gradient = static_cast<T const*>(views_[i].gradient) + first;
    for (std::size_t s = 0; s < static_cast<std::size_t>(states_) && first < last; ++s)
      v.state[s] =
          reinterpret_cast<T*>(state_[s].data() + (offsets_[i] + first * sizeof(T) - held_.first));
    v.size = last - first;
    v.decays = declarations_[i].decays;
    return v;
  }

  List<ParameterView> views_;    // [versions][parameters]
  List<double> square_sums_;     // [parameters]
  List<ParameterBlock> values_;  // [versions]
  ParameterBlock gradients_;
  std::array<ParameterBlock, 2> state_;
  ParameterBlock saved_values_;
  std::array<ParameterBlock, 2> saved_state_;
  std::array<ParameterBlock, 3> host_copy_;  // values and states, where they lie elsewhere
  ParameterMemory const* memory_ = nullptr;
  bool shards_ = false;
  ByteRange held_{0, 0};  // of the layer: what has states here
  bool present_ = false;  // else gradients and state have no memory, and values only at first
};

template <OptimizerPolicy O>
void LayerParameters::update(O const& optimizer, UpdateStep const& step) noexcept {
  for (std::size_t i = 0; i < count(); ++i) {
    if (declarations_[i].type == ElementType::f32)
      optimizer.update(view<float>(i, step), step.gradient_scale, step.number);
    else
      optimizer.update(view<double>(i, step), step.gradient_scale, step.number);
  }
  gradients_.zero(step.range.first, step.range.last);
}

#ifdef STAGGER_SEPARATE_COMPILATION
extern template void LayerParameters::update(optimizer::AdamW const&, UpdateStep const&) noexcept;
extern template void LayerParameters::update(optimizer::Sgd const&, UpdateStep const&) noexcept;
#endif

}  // namespace stagger::detail
