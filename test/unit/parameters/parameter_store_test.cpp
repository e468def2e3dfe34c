// SPDX-License-Identifier: Apache-2.0
#include <stagger/parameters/parameter_store.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include <stagger/engine/setup.hpp>

#include "sanitized.hpp"

namespace parameter_store_test {

namespace {

using namespace stagger;
using detail::LayerParameters;
using detail::ParameterDeclaration;
using detail::ParameterStore;
using detail::StoreRules;
using staleness::Adds;
using staleness::Pushes;

using Random = std::mt19937;
using Value = std::int64_t;

constexpr std::size_t length = 3;
constexpr optimizer::Sgd plain{.rate = 1, .momentum = 0, .weight_decay = 0};

/// Whole numbers, so that sums are exact in any order and a push that is lost or added twice shows.
struct Push {
  std::uint32_t number = 0;  // of the worker, from the first one ever
  Value value = 0;
  double scale = 0;  // once it is added
};

/// The store by its definition: it keeps all pushes, and adds up from the beginning whenever it is
/// asked.
struct SlowStore {
  Adds adds;
  std::vector<double> weights_of{};  // [workers] of gradients; empty: of changes, which have none
  std::vector<std::vector<Push>> pushes{};  // [workers]
  std::vector<bool> ended{};                // [workers]
  std::vector<bool> gone{};                 // [workers] likewise, until they come back
  std::vector<std::uint32_t> border{};      // [workers] where they came back
  std::vector<std::uint32_t> lead{};        // [workers] by how much they were ahead there
  std::uint32_t start = 0;
  std::uint32_t streams = 0;

  [[nodiscard]] std::uint32_t end_of(std::size_t n) const {  // the first number that is not there
    return std::max({start, border[n], pushes[n].empty() ? 0 : pushes[n].back().number + 1});
  }
  /// How far a worker is compared with others.
  [[nodiscard]] std::uint32_t progress(std::size_t n) const { return end_of(n) - lead[n]; }
  /// Pushes of a worker that are added.
  [[nodiscard]] std::uint32_t added(std::size_t n) const {
    if (adds == Adds::on_arrival) return end_of(n);
    std::uint32_t all = end_of(n);
    for (std::size_t o = 0; o < pushes.size(); ++o) {
      std::uint32_t const behind = adds == Adds::in_turn && o > n ? 1 : 0;  // its turn comes later
      if (!ended[o]) all = std::min(all, end_of(o) + behind);
    }
    return all;
  }
  [[nodiscard]] Value sum(std::vector<std::uint32_t> const& until) const {
    double all = 0;
    for (std::size_t n = 0; n < pushes.size(); ++n)
      for (Push const& push : pushes[n])
        all += push.number < until[n] ? static_cast<double>(push.value) * push.scale : 0;
    return static_cast<Value>(all);
  }
  /// Behind whatever has happened: who is there takes over the weights of who has gone, in what was
  /// added.
  void settle() {
    for (std::size_t n = 0; n < pushes.size(); ++n)
      for (Push& push : pushes[n])
        if (push.scale == 0 && push.number < added(n)) push.scale = scale(n, push.number);
  }
  [[nodiscard]] double scale(std::size_t n, std::uint32_t number) const {
    double all = 0;
    double there = 0;
    for (std::size_t o = 0; o < weights_of.size(); ++o) {
      bool const pushed = std::any_of(pushes[o].begin(), pushes[o].end(),
                                      [&](Push const& push) { return push.number == number; });
      all += weights_of[o];
      if (!gone[o] || (adds == Adds::in_worker_order ? pushed : o == n)) there += weights_of[o];
    }
    return weights_of.empty() ? 1 : all / there;
  }
  [[nodiscard]] std::uint32_t rounds() const {
    std::uint32_t most = 0;
    for (std::size_t n = 0; n < pushes.size(); ++n) most = std::max(most, added(n));
    return most;
  }
  [[nodiscard]] Value newest() const {
    std::vector<std::uint32_t> until;
    for (std::size_t n = 0; n < pushes.size(); ++n) until.push_back(added(n));
    return sum(until);
  }
  /// The weights that worker `n` may have: of `asked` rounds, or behind its own last push in turn.
  [[nodiscard]] Value weights(std::size_t n, std::uint32_t asked) const {
    if (adds == Adds::on_arrival) return newest();
    std::vector<std::uint32_t> until(pushes.size(), asked);
    if (adds == Adds::in_turn)
      for (std::size_t o = 0; o < until.size(); ++o) until[o] = end_of(n) - (o <= n ? 0 : 1);
    return sum(until);
  }
  [[nodiscard]] bool ready(std::size_t n, std::uint32_t asked) const {
    if (adds == Adds::in_worker_order) return rounds() >= asked;
    if (added(n) < end_of(n)) return false;
    for (std::size_t o = 0; o < pushes.size(); ++o)
      if (!ended[o] && added(o) - lead[o] < asked) return false;
    return true;
  }
  void end(std::size_t n) {
    ended[n] = true;
    if (std::count(ended.begin(), ended.end(), false) != 0) return;
    for (std::size_t o = 0; o < pushes.size(); ++o) start = std::max(start, end_of(o));
    ended = gone;
    lead.assign(lead.size(), 0);
    ++streams;
  }
  void leave(std::size_t n) {
    gone[n] = true;
    end(n);
  }
  /// As far as the slowest, or as the rounds that are there; its pushes keep their numbers.
  void come_back(std::size_t n) {
    std::uint32_t least = 0xffffffff;
    for (std::size_t o = 0; o < pushes.size(); ++o)
      if (!ended[o]) least = std::min(least, progress(o));
    if (least == 0xffffffff) least = progress(n);
    if (adds == Adds::in_worker_order) least = rounds();
    border[n] = std::max(end_of(n), least);
    lead[n] = adds == Adds::on_arrival ? border[n] - least : 0;
    gone[n] = ended[n] = false;
  }
};

/// One history of a store: random pushes, snapshots and ends, as workers make them that are at most
/// `distance` rounds ahead.
class History {
 public:
  History(Random& random, Adds adds, Pushes pushes, int workers, int distance)
      : random_(random),
        gradients_(pushes == Pushes::gradients),
        distance_(static_cast<std::uint32_t>(distance)),
        call_(detail::optimizer_call<false>(plain)),
        rules_{pushes, adds, call_, {}, true},
        slow_{adds},
        from_(static_cast<std::size_t>(workers)),
        store_(like(), rules_, static_cast<std::size_t>(workers)) {
    slow_.pushes.resize(from_.size());
    slow_.ended = slow_.gone = std::vector<bool>(from_.size());
    slow_.border.resize(from_.size());
    slow_.lead.resize(from_.size());
    // The weights that others take over are exact where at most three workers share them evenly.
    leaves_ = !gradients_ || (workers <= 3 && random() % 2 == 0);
    for (int n = 0; n < workers; ++n)
      rules_.weights.push_back((gradients_ && leaves_) || n % 2 == 0 ? 1 : 0.5);
    if (gradients_) slow_.weights_of.assign(rules_.weights.begin(), rules_.weights.end());
    if (random() % 2 == 0) store_.reserve(random() % 12);
  }

  void play(int operations) {
    for (int i = 0; i < operations; ++i) {
      auto const n = random_() % from_.size();
      CAPTURE(i, n);
      auto const what = random_() % 24;
      if (what == 0)
        give_up();
      else if (what == 1)
        end(n);
      else if (what == 2)
        leave_or_come_back(n);
      else if (what <= 14)
        push(n);
      else
        take(n);
      slow_.settle();
      compare();
    }
    for (std::size_t n = 0; n < from_.size(); ++n) end(n), slow_.settle();
    compare();
  }

 private:
  LayerParameters& like() {
    ParameterDeclaration d;
    std::vector<float> const first(length, 0);
    d.name.push_back('w');
    d.type = element_type_of<float>;
    d.size = length;
    d.initial.assign(reinterpret_cast<std::byte const*>(first.data()), length * sizeof(float));
    List<ParameterDeclaration> declarations;
    declarations.push_back(std::move(d));
    like_.adopt(std::move(declarations), 0, optimizer::Sgd::states);
    return like_;
  }

  void push(std::size_t n) {
    if (slow_.ended[n]) return;
    std::uint32_t const made = slow_.end_of(n);
    // It has a snapshot with enough rounds for its next push; else it would still wait.
    if (exact() && made > from_[n] + distance_) return;
    if (slow_.adds == Adds::in_turn && slow_.added(n) < made) return;  // waits for its turn
    Value const value = static_cast<Value>(random_() % 1000) * 2 - 999 * 2;
    slow_.pushes[n].push_back({made, scale(n) * value / 2});
    std::vector<float> bytes(store_.bytes() / sizeof(float));
    std::fill_n(bytes.begin(), length, static_cast<float>(gradients_ ? value : value / 2));
    store_.push(static_cast<int>(n), reinterpret_cast<std::byte const*>(bytes.data()));
  }
  /// Of changes 1, added as they are; of gradients the step is down and weighted 1 or 1 / 2.
  [[nodiscard]] Value scale(std::size_t n) const {
    return !gradients_ ? 1 : rules_.weights[n] < 1 ? -1 : -2;
  }

  void take(std::size_t n) {
    if (slow_.ended[n]) return;  // it waits for the others' last pushes
    std::uint32_t const most = exact() ? slow_.rounds() : slow_.progress(n);
    std::uint32_t const asked =
        from_[n] + static_cast<std::uint32_t>(random_() % (most - std::min(most, from_[n]) + 2));
    REQUIRE(store_.ready(static_cast<int>(n), asked) == slow_.ready(n, asked));
    if (!slow_.ready(n, asked)) return;
    if (slow_.adds == Adds::in_turn && slow_.end_of(n) == slow_.start) return;  // has not pushed
    std::vector<std::uint32_t> contained(from_.size());
    store_.workers().contained(static_cast<int>(n), asked, rules_.adds, contained);
    CHECK(contained[n] == since_start(n, exact() ? asked : slow_.added(n) - slow_.lead[n]));
    for (std::size_t of = 0; slow_.adds != Adds::in_turn && of < from_.size(); ++of)
      if (of != n) CHECK(contained[of] == of_other(n, of, asked));
    CHECK(value_at(store_.weights(static_cast<int>(n), asked)) == slow_.weights(n, asked));
    if (exact()) from_[n] = asked;
  }
  /// The pushes since its stream began that weights contain of another.
  [[nodiscard]] std::uint32_t of_other(std::size_t n, std::size_t other,
                                       std::uint32_t asked) const {
    if (exact()) return since_start(n, asked);
    return slow_.ended[other] ? detail::all_rounds
                              : since_start(n, slow_.added(other) - slow_.lead[other]);
  }
  [[nodiscard]] std::uint32_t since_start(std::size_t n, std::uint32_t pushes) const {
    return pushes - std::min(pushes, store_.start(static_cast<int>(n)));
  }
  void end(std::size_t n) {
    if (slow_.ended[n]) return;
    store_.end(static_cast<int>(n));
    ended(n);
  }
  /// In turn, whether a worker comes back before or behind its turn depends on more than this knows.
  void leave_or_come_back(std::size_t n) {
    if (!leaves_) return;
    auto const worker = static_cast<int>(n);
    if (!slow_.gone[n]) {
      store_.leave(worker);
      ended(n, true);
    } else if (slow_.adds != Adds::in_turn) {
      store_.come_back(worker);
      slow_.come_back(n);
      store_.begin(worker);
      if (exact()) from_[n] = slow_.rounds();
      CHECK(store_.start(worker) == slow_.progress(n));
    }
  }
  void give_up() {
    store_.give_up();
    for (std::size_t n = 0; n < from_.size(); ++n) slow_.ended[n] = true;
    ended(0);
  }
  /// Streams begin as soon as all have ended.
  void ended(std::size_t n, bool leaves = false) {
    auto const streams = slow_.streams;
    leaves ? slow_.leave(n) : slow_.end(n);
    if (streams == slow_.streams) return;
    CHECK(store_.streams() == slow_.streams);
    CHECK(store_.start(0) == slow_.start);
    for (std::size_t o = 0; o < from_.size(); ++o) {
      store_.begin(static_cast<int>(o));
      if (exact()) from_[o] = slow_.start;
    }
  }

  void compare() const {
    REQUIRE(value_at(store_.newest()) == slow_.newest());
    for (std::size_t n = 0; n < from_.size(); ++n) {
      REQUIRE(store_.pushes(static_cast<int>(n)) == slow_.end_of(n));
      REQUIRE(store_.ended(static_cast<int>(n)) == slow_.ended[n]);
    }
    std::uint32_t from = slow_.rounds();
    for (std::size_t n = 0; n < from_.size(); ++n)
      if (!slow_.ended[n]) from = std::min(from, from_[n]);
    if (!exact()) from = 0;
    REQUIRE(store_.keeps(from));  // what may still be asked for, and nothing older
    REQUIRE((from == 0 || !store_.keeps(from - 1)));
    if (exact()) REQUIRE(slow_.rounds() - from <= distance_ + 1);
  }

  [[nodiscard]] bool exact() const { return slow_.adds == Adds::in_worker_order; }
  [[nodiscard]] static Value value_at(std::byte const* values) {
    float all[length];
    std::memcpy(all, values, sizeof all);
    REQUIRE((all[0] == all[1] && all[1] == all[2]));
    return static_cast<Value>(all[0]);
  }

  Random& random_;
  bool gradients_;
  bool leaves_ = false;  // workers leave, and come back
  std::uint32_t distance_;
  detail::OptimizerCall call_;
  StoreRules rules_;
  SlowStore slow_;
  std::vector<std::uint32_t> from_;  // [workers] rounds that it has asked for
  LayerParameters like_;
  ParameterStore store_;
};

}  // namespace

TEST_CASE("parameters/ParameterStore: any history leaves what a slow store says", "[parameters]") {
  int const histories = sanitized ? 500 : 100000;
  for (int i = 0; i < histories; ++i) {
    Random random(static_cast<unsigned>(i));
    auto const adds =
        std::array{Adds::on_arrival, Adds::in_worker_order, Adds::in_turn}[random() % 3];
    auto const pushes = random() % 2 == 0 ? Pushes::gradients : Pushes::changes;
    int const workers = 1 + static_cast<int>(random() % 4);
    int const distance = static_cast<int>(random() % 4);
    CAPTURE(i, static_cast<int>(adds), static_cast<int>(pushes), workers, distance);
    History(random, adds, pushes, workers, distance).play(1 + static_cast<int>(random() % 60));
  }
}

namespace {

LayerParameters doubles(std::size_t count) {
  LayerParameters like;
  ParameterDeclaration d;
  d.name.push_back('w');
  d.type = ElementType::f64;
  d.size = count;
  d.initial.assign(count * sizeof(double), std::byte{0});
  List<ParameterDeclaration> declarations;
  declarations.push_back(std::move(d));
  like.adopt(std::move(declarations), 0, optimizer::Sgd::states);
  return like;
}

/// Rounds of which the first elements are late, by their definition: an element changes once every
/// worker whose stream goes on has pushed it.
class PartsHistory {
 public:
  PartsHistory(Random& random, int workers)
      : random_(random),
        like_(doubles(elements)),
        rules_{Pushes::gradients, Adds::in_worker_order, call_, {}},
        workers_(static_cast<std::size_t>(workers)),
        store_(like_, rules_, workers_.size()) {
    for (int n = 0; n < workers; ++n) rules_.weights.push_back(n % 2 == 0 ? 1 : 0.5);
    if (random() % 2 == 0) store_.reserve(1);
    begin();
  }
  void play(int operations) {
    for (int i = 0; i < operations; ++i) {
      std::size_t const n = random_() % workers_.size();
      CAPTURE(i, n, late_, whole_rounds_);
      auto const what = random_() % 24;
      if (what == 0)
        give_up();
      else if (what == 1)
        end(n);
      else if (what == 2)
        read(n);
      else if (what <= 6)
        take(n);
      else
        push(n);
      compare();
    }
    give_up();
    compare();
  }
  int partial = 0;  // rounds of which a part is missing

 private:
  static constexpr std::size_t elements = 4;
  using Values = std::array<double, elements>;
  enum class Phase : std::uint8_t { idle, begun, done };
  struct Worker {
    Phase phase = Phase::idle;
    bool ended = false;
    bool read = false;  // the newest weights, and so none that are older
    Values pushed{};
  };

  [[nodiscard]] bool divided() const { return late_ != 0 && late_ != elements; }
  [[nodiscard]] bool all_are(Phase phase) const {
    return std::all_of(workers_.begin(), workers_.end(),
                       [&](Worker const& each) { return each.ended || each.phase == phase; });
  }
  [[nodiscard]] std::byte const* bytes_of(Worker const& own) {
    buffer_.assign(store_.bytes() / sizeof(double), 0.0);
    std::copy(own.pushed.begin(), own.pushed.end(), buffer_.begin());
    return reinterpret_cast<std::byte const*>(buffer_.data());
  }
  /// Steps down by what those in a phase have pushed.
  void add(Phase phase, std::size_t first, std::size_t last) {
    for (std::size_t n = 0; n < workers_.size(); ++n)
      for (std::size_t i = first; workers_[n].phase == phase && i < last; ++i)
        values_[i] -= rules_.weights[n] * workers_[n].pushed[i];
  }
  void push(std::size_t n) {
    Worker& own = workers_[n];
    if (own.ended || own.phase == Phase::done) return;
    auto const worker = static_cast<int>(n);
    std::size_t const border = late_ * sizeof(double);
    if (own.phase == Phase::idle) {
      for (double& each : own.pushed) each = 2 * (static_cast<double>(random_() % 1000) - 500);
      own.phase = divided() ? Phase::begun : Phase::done;
      divided() ? store_.push(worker, bytes_of(own), {border, store_.bytes()})
                : store_.push(worker, bytes_of(own));
    } else if (urgent_added_) {  // else it waits for the urgent part
      own.phase = Phase::done;
      store_.push(worker, bytes_of(own), {0, border});
    }
    settle();
  }
  void settle() {
    bool const any = std::any_of(workers_.begin(), workers_.end(),
                                 [](Worker const& each) { return !each.ended; });
    if (!any) return;
    if (divided() && !urgent_added_ && all_are(Phase::begun)) {
      before_ = values_;
      add(Phase::begun, late_, elements);
      urgent_added_ = true;
      ++partial;
    }
    if (!all_are(Phase::done)) return;
    add(Phase::done, 0, divided() ? late_ : elements);
    begin_round(1);
  }
  void begin_round(std::uint32_t added) {
    whole_rounds_ += added;
    for (Worker& each : workers_) each.phase = Phase::idle, each.read = false;
    urgent_added_ = false;
    late_ = random_() % (elements + 1);
  }
  void end(std::size_t n) {
    Worker& own = workers_[n];
    bool const last = std::count_if(workers_.begin(), workers_.end(),
                                    [](Worker const& each) { return !each.ended; }) == 1;
    if (own.ended || own.phase != Phase::idle || last) return;
    own.ended = true;
    store_.end(static_cast<int>(n));
    settle();
  }
  void give_up() {
    store_.give_up();
    bool const pushed = std::any_of(workers_.begin(), workers_.end(),
                                    [](Worker const& each) { return each.phase == Phase::done; });
    add(Phase::done, 0, urgent_added_ ? late_ : elements);
    begin_round(urgent_added_ || pushed ? 1 : 0);
    begin();
  }
  void begin() {
    for (std::size_t n = 0; n < workers_.size(); ++n) {
      workers_[n] = {};
      store_.enter(static_cast<int>(n), 0);
      store_.begin(static_cast<int>(n));
      CHECK(store_.start(static_cast<int>(n)) == whole_rounds_);
    }
  }
  void read(std::size_t n) {
    if (workers_[n].ended) return;
    store_.begin(static_cast<int>(n));
    workers_[n].read = urgent_added_;
  }
  void take(std::size_t n) {
    if (workers_[n].ended || workers_[n].read) return;
    CHECK(at(store_.weights(static_cast<int>(n), whole_rounds_)) ==
          (urgent_added_ ? before_ : values_));
  }

  [[nodiscard]] static Values at(std::byte const* values) {
    Values all;
    std::memcpy(all.data(), values, sizeof all);
    return all;
  }
  void compare() {
    Values const newest = at(store_.newest());
    for (std::size_t i = urgent_added_ ? late_ : 0; i < elements; ++i)
      REQUIRE(newest[i] == values_[i]);
    for (std::size_t n = 0; n < workers_.size(); ++n) {
      auto const worker = static_cast<int>(n);
      REQUIRE(store_.ready(worker, whole_rounds_ + 1, true) == urgent_added_);
      REQUIRE_FALSE(store_.ready(worker, whole_rounds_ + 1));
      if (!workers_[n].read) REQUIRE(store_.ready(worker, whole_rounds_));
    }
  }

  Random& random_;
  detail::OptimizerCall call_ = detail::optimizer_call<false>(plain);
  LayerParameters like_;
  StoreRules rules_;
  std::vector<Worker> workers_;
  ParameterStore store_;
  Values values_{};
  Values before_{};  // the urgent part of the round
  std::vector<double> buffer_;
  std::uint32_t whole_rounds_ = 0;
  std::size_t late_ = 0;  // elements, the first ones
  bool urgent_added_ = false;
};

}  // namespace

TEST_CASE("parameters/ParameterStore: any history of rounds in two parts adds each element once",
          "[parameters]") {
  int partial = 0;
  for (int i = 0; i < (sanitized ? 500 : 20000); ++i) {
    Random random(static_cast<unsigned>(i));
    int const workers = 1 + static_cast<int>(random() % 4);
    CAPTURE(i, workers);
    PartsHistory history(random, workers);
    history.play(1 + static_cast<int>(random() % 60));
    partial += history.partial;
  }
  CHECK(partial > (sanitized ? 500 : 20000));
}

TEST_CASE("parameters/ParameterStore: streams may end between the two parts of a round",
          "[parameters]") {
  constexpr std::size_t half = 8;
  LayerParameters like;
  ParameterDeclaration d;
  d.name.push_back('w');
  d.type = ElementType::f64;
  d.size = 2;
  d.initial.assign(2 * sizeof(double), std::byte{0});
  List<ParameterDeclaration> declarations;
  declarations.push_back(std::move(d));
  like.adopt(std::move(declarations), 0, optimizer::Sgd::states);
  StoreRules rules{Pushes::gradients, Adds::in_worker_order, detail::optimizer_call<false>(plain)};
  rules.weights.assign(2, 1.0);

  // How many workers have pushed both parts, and whether some read the newest weights in between.
  for (auto const& [complete, reads] :
       {std::pair{0, false}, {1, false}, {2, false}, {0, true}, {1, true}, {2, true}}) {
    CAPTURE(complete, reads);
    ParameterStore store(like, rules, 2);
    std::vector<double> gradient(store.bytes() / sizeof(double));
    gradient[0] = gradient[1] = -1;
    auto const* const bytes = reinterpret_cast<std::byte const*>(gradient.data());
    auto const first_of = [](std::byte const* values) {
      std::array<double, 2> all{};
      std::memcpy(all.data(), values, sizeof all);
      return all;
    };
    for (int n : {0, 1}) store.enter(n, 0), store.begin(n);
    for (int n : {0, 1}) store.push(n, bytes, {half, store.bytes()});
    REQUIRE(store.ready(0, 1, true));
    for (int n = 0; reads && n < 2; ++n) store.begin(n);
    for (int n = 0; n < complete; ++n) store.push(n, bytes, {0, half});
    CHECK(store.ready(0, 1) == (complete == 2));
    store.give_up();
    // What all had pushed of it stays; of the late part what was pushed by then.
    CHECK(first_of(store.newest()) == std::array{double(complete), 2.0});

    for (int n : {0, 1}) store.enter(n, 0), store.begin(n);
    CHECK(store.start(0) == 1);
    CHECK_FALSE(store.ready(0, store.start(0) + 1));
    for (int n : {0, 1}) store.push(n, bytes);
    REQUIRE(store.ready(0, store.start(0) + 1));
    CHECK_FALSE(store.ready(0, store.start(0) + 2));
    CHECK(first_of(store.weights(0, store.start(0) + 1)) == std::array{complete + 2.0, 4.0});
    CHECK(store.history().total() == static_cast<std::uint32_t>(complete + 2));
  }
}

TEST_CASE("parameters/ParameterStore: rounds are counted from when the workers began",
          "[parameters]") {
  struct Counted final : detail::AddedRounds {
    void add(detail::ScoredLayer const& layer) noexcept override { steps.push_back(layer.step()); }
    std::vector<std::int64_t> steps;
  } counted;
  LayerParameters like;
  ParameterDeclaration d;
  d.name.push_back('w');
  d.size = 1;
  d.initial.assign(sizeof(float), std::byte{0});
  List<ParameterDeclaration> declarations;
  declarations.push_back(std::move(d));
  like.adopt(std::move(declarations), 0, optimizer::Sgd::states);
  StoreRules rules{Pushes::gradients, Adds::in_worker_order, detail::optimizer_call<false>(plain)};
  rules.weights.assign(2, 1.0);
  rules.added = &counted;
  ParameterStore store(like, rules, 2);
  std::vector<std::byte> const gradient(store.bytes());
  auto const round = [&](std::vector<int> const& workers) {
    for (int const n : workers) store.push(n, gradient.data());
  };
  for (int n : {0, 1}) store.enter(n, 0), store.begin(n);
  round({0, 1});
  store.leave(0);
  round({1});
  store.come_back(0);
  round({0, 1});
  CHECK(counted.steps == std::vector<std::int64_t>{0, 1, 2});
  store.give_up();
  for (int n : {0, 1}) store.enter(n, 0), store.begin(n);
  round({0, 1});
  CHECK(counted.steps.back() == 0);
}

TEST_CASE("parameters/ParameterStore: a step that writes what is not finite leaves no trace",
          "[parameters]") {
  constexpr optimizer::AdamW adam{.rate = 0.1};
  auto const adds = GENERATE(Adds::on_arrival, Adds::in_worker_order, Adds::in_turn);
  auto const pushes = GENERATE(Pushes::gradients, Pushes::changes, Pushes::weights);
  if (pushes == Pushes::weights && adds != Adds::in_worker_order) return;  // of which is no mean
  CAPTURE(static_cast<int>(adds), static_cast<int>(pushes));
  StoreRules rules{pushes, adds, detail::optimizer_call<false>(adam)};
  rules.weights.assign(2, 1.0);
  rules.log = true;
  LayerParameters like;
  List<ParameterDeclaration> declarations;
  for (char const* const name : {"a", "b"}) {
    ParameterDeclaration d;
    d.name = name;
    d.size = length;
    std::array<float, length> first;
    // So small that a step by another number would give another weight.
    first.fill(pushes == Pushes::gradients ? 0.5F : -1e38F);
    d.initial.assign(sizeof first, std::byte{0});
    std::memcpy(d.initial.data(), first.data(), sizeof first);
    declarations.push_back(std::move(d));
  }
  like.adopt(std::move(declarations), 0, optimizer::AdamW::states);
  detail::StepBackup backup;  // as of a larger layer that has a step in between
  ParameterStore store(like, rules, 2, &backup);
  ParameterStore other(like, rules, 2, &backup);
  std::vector<float> values(store.bytes() / sizeof(float));
  auto const push = [&](ParameterStore& to, int n, float value) {
    values.assign(values.size(), 1);
    values[values.size() / 2 + 1] = value;  // of the second parameter
    to.push(n, reinterpret_cast<std::byte const*>(values.data()));
  };
  auto const restart = [](ParameterStore& of) {
    of.give_up();
    for (int n : {0, 1}) of.enter(n, 0), of.begin(n);
  };
  auto const same = [&] { return std::memcmp(store.newest(), other.newest(), store.bytes()) == 0; };
  for (ParameterStore* each : {&store, &other}) {
    restart(*each);
    for (int n : {0, 1}) push(*each, n, 0.5F);
    CHECK_FALSE(each->workers().undone());
  }
  REQUIRE(same());
  auto const log = store.history().log().size();
  // A gradient's square is too large; a change, or a difference, alone is too large for the weight.
  bool const alone = adds != Adds::in_worker_order;
  if (!alone) push(store, 0, 1);
  push(store, alone ? 0 : 1, -3.3e38F);
  CHECK(store.workers().undone());
  CHECK(same());
  CHECK(store.history().log().size() == log);
  CHECK(store.history().total() == other.history().total());
  CHECK(store.workers().take_undone() == 0);
  CHECK(store.workers().take_undone() == (alone ? -1 : 1));
  CHECK(store.workers().take_undone() == -1);
  CHECK_FALSE(store.workers().undone());
  CHECK(store.pushes(0) == 2);                     // its number is used
  for (ParameterStore* each : {&store, &other}) {  // gradients and state are those before, too
    restart(*each);
    for (int i = 0; i < 3; ++i)
      for (int n : {0, 1}) push(*each, n, 0.25F);
  }
  CHECK_FALSE(store.workers().undone());
  CHECK(same());
  CHECK(std::equal(store.history().missed(0).begin(), store.history().missed(0).end(),
                   other.history().missed(0).begin()));
}

}  // namespace parameter_store_test
