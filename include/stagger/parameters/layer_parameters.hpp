// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Parameters as the engine stores them: values, gradients, optimizer state.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <stagger/core/add_up.hpp>
#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/model/optimizer.hpp>
#include <stagger/model/parameter.hpp>
#include <stagger/parameters/layer_shape.hpp>
#include <stagger/parameters/optimizer_call.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::detail {

/// The gradients of a further owner of a layer, beside the values of the first. An owner whose
/// memory is not that of the first one has values of its own too, and may have states.
class GradientCopy {
 public:
  /// @param views   [parameters] of the first owner
  /// @param blocks  likewise
  void of(LayerShape const& shape, ParameterView const* views, ParameterBlocks const& blocks,
          KeptGradients const& kept = {}) {
    kept_ = kept;
    views_.assign(views, shape.count());
    std::size_t const all = blocks.gradients.size();
    gradients_.make(blocks.memory, kept.part.size_before(all));
    for (std::size_t i = 0; i < views_.size() && kept.of != KeptGradients::Of::first; ++i)
      views_[i].gradient = kept.arrive() ? nullptr : gradients_.at(shape.range(i).first);
  }
  /// Shows the layer further versions of the first owner's values.
  /// @param views  [versions][count] of the first owner
  [[gnu::cold]] void show_versions(ParameterView const* views, std::size_t versions,
                                   std::size_t count) {
    for (std::size_t i = views_.size(); i < versions * count; ++i) {
      views_.push_back(views[i]);
      views_.back().gradient = views_[i % count].gradient;
    }
  }
  [[nodiscard]] KeptGradients const& kept() const noexcept { return kept_; }
  [[nodiscard]] ParameterMemory const* memory() const noexcept { return gradients_.memory(); }
  /// Byte `offset` of the layer's gradients that are kept here.
  [[nodiscard]] std::byte* at(std::size_t offset) const noexcept {
    return gradients_.at(offset - kept_.part.first);
  }
  [[nodiscard]] ParameterView const* views() const noexcept { return views_.data(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return gradients_.size() + values_.size() + received_.size() + own_.state_bytes();
  }
  void zero(ByteRange part = {}) noexcept { gradients_.zero(part.first, part.last); }
  void release() noexcept { gradients_ = {}; }

  /// Moves the copy to another memory, between steps. In another memory than the first owner's it
  /// gets values of its own.
  /// @param arrive  whether the first owner gets a buffer in which the gradients arrive
  [[gnu::cold]] void move_to(LayerShape const& shape, ParameterBlocks const& blocks,
                             ParameterMemory const* memory, bool arrive) {
    bool const apart = memory != blocks.memory;
    gradients_.move_to(memory);
    values_.make(memory, apart ? gradients_.size() : 0);
    received_.make(blocks.memory, apart && arrive ? gradients_.size() : 0);
    for (ParameterBlock& state : own_.states)
      has_part() ? state.move_to(memory) : state.make(nullptr, 0);
    for (std::size_t i = 0; i < views_.size(); ++i) {
      std::size_t const offset = shape.range(i).first;
      views_[i].value = (apart ? values_ : blocks.values[0]).data() + offset;
      views_[i].gradient = gradients_.data() + offset;
    }
    take_values(blocks);
  }
  /// Copies the first owner's values and states into its own, if it has any. A part's states stay.
  [[gnu::cold]] void take_values(ParameterBlocks const& blocks) {
    values_.take_from(blocks.values[0]);
    for (std::size_t s = 0; s < own_.states.size() && !has_part(); ++s)
      own_.states[s].take_from(blocks.states[s]);
  }
  /// From now on this owner updates its own values, if it has any, as the first owner does.
  [[gnu::cold]] void hold_states(ParameterBlocks const& blocks) {
    for (std::size_t s = 0; s < own_.states.size() && values_.size() != 0; ++s) {
      own_.states[s].make(values_.memory(), blocks.states[s].size());
      own_.states[s].take_from(blocks.states[s]);
    }
  }
  /// Likewise a part of them, whose states it alone has, if LayerMemory::hold_states says so.
  [[nodiscard]] bool has_part() const noexcept { return own_.held.last != 0; }
  [[nodiscard]] HeldStates& own_states() noexcept { return own_; }
  [[nodiscard]] HeldStates const& own_states() const noexcept { return own_; }
  /// The states that go with its values.
  [[nodiscard]] HeldStates const& states(ParameterBlocks const& blocks) const noexcept {
    return values_.size() != 0 ? own_ : blocks;
  }

  [[nodiscard]] std::span<std::byte> gradients() const noexcept { return gradients_.span(); }
  /// The buffer for its gradients in the memory of the first owner.
  [[nodiscard]] std::span<std::byte> received() const noexcept { return received_.span(); }
  [[nodiscard]] std::span<std::byte> values() const noexcept { return values_.span(); }
  /// Its gradients of a parameter, in the memory in which the first owner adds them up.
  [[nodiscard]] std::byte const* sent(LayerShape const& shape, std::size_t i) const noexcept {
    return received_.size() != 0 ? received_.data() + shape.range(i).first
                                 : static_cast<std::byte const*>(views_[i].gradient);
  }

 private:
  KeptGradients kept_;
  List<ParameterView> views_;  // [versions][parameters]
  ParameterBlock gradients_;
  ParameterBlock values_, received_;  // of an owner with a memory of its own
  HeldStates own_;                    // of an owner that also updates
};

/// The memory of one layer's parameters. Values, gradients and states are contiguous, each
/// parameter on a boundary of `alignment_bytes`, so that gradients can be reduced in one message
/// and sums do not depend on where they lie.
class LayerMemory : public LayerShape {
 public:
  /// Takes over what a layer declares.
  /// @param memory  where to keep it; null: on the host
  /// @param shards  there is no state until hold_states() names a part of the layer
  /// @param whole   if false, there is no memory until hold()
  [[gnu::cold]] void adopt(List<ParameterDeclaration> declarations, int layer, int states,
                           ParameterMemory const* memory = nullptr, bool shards = false,
                           bool whole = true) {
    declare(std::move(declarations), layer, states);
    blocks_.memory = memory;
    blocks_.values.resize(1);
    square_sums_.resize(count());
    added_ = FixedArray<std::atomic<bool>>(count());
    shards_ = shards;
    if (!shards) blocks_.held = {0, size_};
    if (whole)
      hold();
    else
      make_views();
  }

  /// Allocates the memory that is missing: gradients and state are zeros, values are those before
  /// the first step, or zeros if they were released before.
  /// @return whether anything was allocated
  [[gnu::cold]] bool hold() {
    if (std::exchange(present_, true)) return false;
    for (ParameterBlock& version : blocks_.values)
      if (version.size() != size_) version.make(memory(), size_);
    set_first_values();
    blocks_.gradients.make(memory(), size_);
    for (std::size_t s = 0; !shards_ && s < states_; ++s) blocks_.states[s].make(memory(), size_);
    make_views();
    return true;
  }
  /// Frees all memory, if another process runs the layer.
  [[gnu::cold]] void release() noexcept {
    for (auto& d : declarations_) d.initial = {};
    if (values().empty()) return;
    for (ParameterBlock& version : blocks_.values) version = {};
    blocks_.gradients = {};
    saved_ = {};
    if (!shards_) blocks_.states = {};
    for (auto& view : views_) view.value = view.gradient = nullptr;
    present_ = false;
  }
  /// Frees the gradients, if this process computes none.
  [[gnu::cold]] void release_gradients() noexcept {
    blocks_.gradients = {};
    make_views();
  }
  /// With sharded optimizer states: allocates those of a part of the layer, zeros or what the host has
  /// written before it was known who has them; on the host also the memory to undo an update of it.
  /// @param copy  of the further owner that has them, if its memory is another; null: they are here
  /// @return  false if it has those of another part; then nothing changes
  [[gnu::cold]] bool hold_states(ByteRange range, GradientCopy* copy = nullptr) {
    HeldStates& held = copy != nullptr ? copy->own_states() : blocks_;
    bool const first = held.held.last == 0 && range.last != 0;
    auto const* const there = copy != nullptr ? copy->memory() : memory();
    if (copy != nullptr && first) others_.reserve(others_.size() + 1);  // before memory is held
    if (!held.hold(range, there, states_)) return false;
    if (there == nullptr) saved_.make(there, range.size(), states_);
    if (there == nullptr || !first) return true;
    if (copy != nullptr) others_.push_back(copy);
    shown_.copy_states(held, true);
    return true;
  }
  /// Makes room for this many versions of the values. Version 0 is the one that lasts.
  [[gnu::cold]] void reserve_versions(std::size_t versions) {
    while (blocks_.values.size() < versions) {
      ParameterBlock version;
      version.make(memory(), values().size());
      views_.reserve(views_.size() + count());
      blocks_.values.push_back(std::move(version));
      add_views(blocks_.values.back());
    }
  }
  /// Moves everything to another memory, between steps. Neither memory is the host's own.
  [[gnu::cold]] void move_to(ParameterMemory const* to) {
    if (to == memory()) return;
    for (ParameterBlock& version : blocks_.values) version.move_to(to);
    for (auto* const block : {&blocks_.gradients, &blocks_.states[0], &blocks_.states[1]})
      block->move_to(to);
    saved_.move_to(to);
    blocks_.memory = to;
    make_views();
  }

  /// The memory that has the parameters; null: the host's.
  [[nodiscard]] ParameterMemory const* memory() const noexcept { return blocks_.memory; }
  [[nodiscard]] ParameterBlocks const& stored() const noexcept { return blocks_; }
  /// Returns `with(block)`, which may exchange the memory of a version of the values, or of the
  /// `gradients`, for other memory of the same size. @pre nobody else has views of it
  template <class With> auto exchange(std::size_t version, With with) {
    struct Renewal final {
      ~Renewal() { of.make_views(); }
      LayerMemory& of;
    } const renewal{*this};
    return with(version == gradients ? blocks_.gradients : blocks_.values[version]);
  }
  static constexpr std::size_t gradients = ~std::size_t{0};
  /// Whether there is memory for it.
  [[nodiscard]] bool present() const noexcept { return present_; }
  /// Version 0 of the values, and the states.
  [[nodiscard]] std::array<std::span<std::byte>, 3> blocks() const noexcept {
    return {{values(), blocks_.states[0].span(), blocks_.states[1].span()}};
  }
  /// The same as the host sees them: copies, where states are sharded, or where they lie in another
  /// memory.
  [[nodiscard]] std::array<std::span<std::byte>, 3> shown_blocks() const noexcept {
    if (!shards_ && memory() == nullptr) return blocks();
    auto const* const copies = shown_.blocks();
    return {
        {memory() != nullptr ? copies[0].span() : values(), copies[1].span(), copies[2].span()}};
  }
  /// Version 0 of the values, in its own memory.
  [[nodiscard]] std::span<std::byte> values() const noexcept { return blocks_.values[0].span(); }
  [[nodiscard]] std::span<std::byte> value_bytes_of(ByteRange range) const noexcept {
    return {values().data() + range.first, range.last - range.first};
  }
  /// State `s` of the part of the layer whose states are here.
  [[nodiscard]] std::span<std::byte> held_state(std::size_t s, ByteRange range) const noexcept {
    return {blocks_.states[s].data() + (range.first - blocks_.held.first),
            range.last - range.first};
  }
  /// What a context shows to the layer, [versions][parameters].
  [[nodiscard]] ParameterView const* views() const noexcept { return views_.data(); }
  [[nodiscard]] std::uint64_t state_bytes() const noexcept { return blocks_.state_bytes(); }
  /// Values, gradients and state together, in bytes.
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    std::uint64_t sum = blocks_.gradients.size() + state_bytes() + saved_.bytes();
    for (ParameterBlock const& version : blocks_.values) sum += version.size();
    return sum;
  }

  /// Whether an owner has asked for a parameter's gradient since clear_added(), to add to it.
  [[nodiscard]] bool added(std::size_t i) const noexcept {
    return added_[i].load(std::memory_order_relaxed);
  }
  void note_added(std::size_t i) noexcept { added_[i].store(true, std::memory_order_relaxed); }
  void clear_added() noexcept {
    for (auto& one : added_) one.store(false, std::memory_order_relaxed);
  }

  // --- a step that fails

  /// Saves or restores values and state, or those of the part whose states are here.
  void save() { saved_.save(blocks_); }
  void restore() { saved_.restore(blocks_); }
  void copy_part(ByteRange part, bool back) noexcept { saved_.copy_part(blocks_, part, back); }
  void zero_gradients(ByteRange part = {}) noexcept {
    blocks_.gradients.zero(part.first, part.last);
  }
  void zero_states() noexcept {
    for (ParameterBlock& state : blocks_.states) state.zero();
  }

  // --- what the host is shown between two steps

  /// Appends views of the values, and if `whole` of the states. On a device they are views of a
  /// copy, and `take_back` copies what was written into it.
  [[gnu::cold]] void append_states(std::vector<ParameterState>& states, bool whole = true) {
    if (whole) hold();
    if (memory() != nullptr) shown_.make(values().size(), states_);
    if (memory() != nullptr) copy_shown(false);
    if (memory() == nullptr && shards_ && whole) shown_.spread(blocks_, states_);
    auto const& first = memory() != nullptr ? shown_.blocks()[0] : blocks_.values[0];
    auto const* const others =
        memory() != nullptr || shards_ ? shown_.blocks() + 1 : blocks_.states.data();
    for (std::size_t i = 0; i < count(); ++i) {
      ParameterShape const known = shape(i);
      ParameterState& state = states.emplace_back(
          ParameterState{known.name, known.type, {first.data() + offsets_[i], known.bytes}, {}});
      for (std::size_t s = 0; whole && s < states_; ++s)
        state.state[s] = {others[s].data() + offsets_[i], known.bytes};
    }
  }
  /// Likewise if the layer is in this process; otherwise only names, without values.
  [[gnu::cold]] void append_own(std::vector<ParameterState>& states) {
    if (present_) return append_states(states);
    for (std::size_t i = 0; i < count(); ++i) {
      ParameterShape const known = shape(i);
      states.push_back({known.name, known.type, {}, {}});
    }
  }
  /// Takes over what the host may have written into the copy.
  [[gnu::cold]] void take_back() {
    if (memory() != nullptr) return copy_shown(true);
    if (shards_) shown_.gather(blocks_, states_);
  }
  /// With sharded states: state `s` of the whole layer in the copy for the host.
  [[nodiscard]] std::span<std::byte> shown_state(std::size_t s, ByteRange range) const noexcept {
    return shown_.state(s, range);
  }

 protected:
  ParameterBlocks blocks_;
  List<ParameterView> views_;  // [versions][parameters]
  List<double> square_sums_;   // [parameters]

 private:
  /// Copies what a device has to the copies for the host, or back.
  [[gnu::cold]] void copy_shown(bool back) const {
    shown_.copy_values(blocks_.values[0], back);
    shown_.copy_states(blocks_, back);
    for (GradientCopy const* const other : others_) shown_.copy_states(other->own_states(), back);
  }
  [[gnu::cold]] void set_first_values() {
    for (std::size_t i = 0; i < count(); ++i) {
      ParameterDeclaration& d = declarations_[i];
      std::byte* const to = blocks_.values[0].at(offsets_[i]);
      if (d.fill != nullptr && memory() == nullptr) {
        d.fill(d, to);
      } else if (d.fill != nullptr) {
        d.initial.resize(value_bytes(i));
        d.fill(d, d.initial.data());
      }
      if (!d.initial.empty() && memory() != nullptr)
        memory()->upload(*memory(), to, d.initial.data(), d.initial.size());
      else if (!d.initial.empty())
        std::memcpy(to, d.initial.data(), d.initial.size());
      d.initial = {};
      d.fill = nullptr;
    }
  }

  [[gnu::cold]] void make_views() {
    views_.clear();
    for (ParameterBlock const& version : blocks_.values) add_views(version);
  }
  void add_views(ParameterBlock const& version) {
    for (std::size_t i = 0; i < count(); ++i)
      views_.push_back({version.at(offsets_[i]), blocks_.gradients.at(offsets_[i]),
                        declarations_[i].size, &added_[i]});
  }

  SavedParameters saved_;
  ShownParameters shown_;
  List<GradientCopy const*> others_;     // that have states of parts
  FixedArray<std::atomic<bool>> added_;  // [parameters]
  bool shards_ = false;
  bool present_ = false;  // whether gradients, state and, after the first step, values are here
};

/// The parameters of one layer: their memory, and what is done with it at the end of a step.
class LayerParameters : public LayerMemory {
 public:
  /// Owners whose gradients are added in one pass over the sum.
  static constexpr std::size_t most_copies = 15;

  /// Adds the sums of other owners, in their order.
  /// @pre  at most most_copies
  /// @param to  a copy to whose gradients they are added; null: the first owner's
  void add(std::span<GradientCopy const* const> copies, ByteRange range = {},
           GradientCopy const* to = nullptr) {
    for (std::size_t i = 0; i < count(); ++i)
      with_type(declarations_[i].type, [&]<class T>() {
        if (memory() == nullptr) return add_gradients<T>(i, copies, elements<T>(i, range), to);
        for (GradientCopy const* const copy : copies) add_there(i, *copy, elements<T>(i, range));
      });
  }

  /// Sum of squares of a parameter's gradient: one sum per parameter, so that any cut adds the
  /// same numbers.
  /// @param sums   [count()] where the sums go in the memory of a back end; unused on the host
  /// @param range  part of the layer: continues the sum of the elements before it
  void sum_squares(std::size_t i, double* sums = nullptr, ByteRange range = {}) {
    if (memory() != nullptr)
      return memory()->sum_squares(*memory(), declarations_[i].type, views_[i].gradient,
                                   views_[i].size, sums + i);
    double const before = range.first > offsets_[i] ? square_sums_[i] : 0;
    with_type(declarations_[i].type, [&]<class T>() {
      auto const of = elements<T>(i, range);
      square_sums_[i] =
          add_squares(before, static_cast<T const*>(views_[i].gradient) + of.first, of.size());
    });
  }
  void sum_squares() {
    for (std::size_t i = 0; i < count(); ++i) sum_squares(i);
  }
  [[nodiscard]] std::span<double const> square_sums() const noexcept { return square_sums_; }
  /// Where to store the sums that another process has computed.
  [[nodiscard]] std::span<double> received_square_sums() noexcept { return square_sums_; }

  /// One optimizer step on every parameter, from one version of the values to another or the same;
  /// then gradients are zero.
  template <OptimizerPolicy O> void update(O const& optimizer, UpdateStep const& step) noexcept;
  /// Writes what `update` would add to version `from` into version `to`; then gradients are zero.
  template <OptimizerPolicy O> void change(O const& optimizer, UpdateStep const& step) noexcept;

 private:
  [[gnu::cold]] void add_there(std::size_t i, GradientCopy const& copy, ByteRange elements) {
    std::size_t const each = element_bytes(declarations_[i].type);
    auto const [first, last] = elements;
    if (first >= last) return;
    memory()->add(*memory(), declarations_[i].type,
                  static_cast<std::byte*>(views_[i].gradient) + first * each,
                  copy.sent(*this, i) + first * each, last - first);
  }

  /// Elements of a parameter within a range of the layer's memory.
  template <class T>
  [[nodiscard]] ByteRange elements(std::size_t i, ByteRange range) const noexcept {
    auto const [first, last] = within(i, range);
    return {first / sizeof(T), last / sizeof(T)};
  }

  template <class T>
  void add_gradients(std::size_t i, std::span<GradientCopy const* const> copies, ByteRange elements,
                     GradientCopy const* to) noexcept {
    if (elements.first >= elements.last) return;
    std::size_t const first = offsets_[i] + elements.first * sizeof(T);
    std::array<T const*, most_copies> more;
    for (std::size_t s = 0; s < copies.size(); ++s)
      more[s] = reinterpret_cast<T const*>(copies[s]->at(first));
    std::byte* const sum = to == nullptr ? blocks_.gradients.at(first) : to->at(first);
    add_up(reinterpret_cast<T*>(sum), more.data(), copies.size(), elements.size());
  }

  template <class T>
  [[nodiscard]] OptimizerView<T> view(std::size_t i, UpdateStep const& step) noexcept {
    ParameterView const* const views = step.copy == nullptr ? this->views() : step.copy->views();
    HeldStates const& held = step.copy == nullptr ? blocks_ : step.copy->states(blocks_);
    OptimizerView<T> v;
    auto const [first, last] = elements<T>(i, step.range);
    v.value = static_cast<T const*>(views[step.from * count() + i].value) + first;
    v.next = static_cast<T*>(views[step.to * count() + i].value) + first;
    v.gradient = static_cast<T const*>(views[i].gradient) + first;
    std::size_t const at = offsets_[i] + first * sizeof(T) - held.held.first;
    for (std::size_t s = 0; s < states_ && first < last; ++s)
      v.state[s] = reinterpret_cast<T*>(held.states[s].data() + at);
    v.size = last - first;
    v.decays = declarations_[i].decays;
    if (v.size == declarations_[i].size) v.rows = declarations_[i].rows;
    return v;
  }
  /// Calls `body(view, whether it is updated)` for every parameter with elements in the part.
  template <class Body> void each_view(UpdateStep const& step, Body body) noexcept {
    for (std::size_t i = 0; i < count(); ++i)
      with_type(declarations_[i].type, [&]<class T>() {
        if (auto const of = view<T>(i, step); of.size != 0) body(of, !step.only_added || added(i));
      });
  }
};

template <OptimizerPolicy O>
void LayerParameters::update(O const& optimizer, UpdateStep const& step) noexcept {
  each_view(step, [&]<class T>(OptimizerView<T> const& view, bool updated) {
    if (updated)
      optimizer.update(view, step.gradient_scale, step.number);
    else if (view.next != view.value)
      std::memcpy(view.next, view.value, view.size * sizeof(T));
  });
  if (step.copy != nullptr)
    step.copy->zero();
  else
    blocks_.gradients.zero(step.range.first, step.range.last);
}

template <OptimizerPolicy O>
void LayerParameters::change(O const& optimizer, UpdateStep const& step) noexcept {
  each_view(step, [&]<class T>(OptimizerView<T> const& view, bool updated) {
    if (updated)
      change_of(optimizer, view, step);
    else
      std::memset(view.next, 0, view.size * sizeof(T));
  });
  blocks_.gradients.zero();
}

#ifdef STAGGER_SEPARATE_COMPILATION
extern template void LayerParameters::update(optimizer::AdamW const&, UpdateStep const&) noexcept;
extern template void LayerParameters::update(optimizer::Sgd const&, UpdateStep const&) noexcept;
#endif

}  // namespace stagger::detail
