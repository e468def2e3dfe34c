// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A worker of a simulation: it does what a pipeline does at its link, in the order in which that
///         does it, and computes by letting time pass.

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/remote_link.hpp>
#include <stagger/core/error.hpp>
#include <stagger/model/parameter.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/parameter_link.hpp>

#include "faults/fiber.hpp"
#include "faults/line.hpp"
#include "faults/model.hpp"
#include "faults/tally.hpp"

namespace lab {

/// Where a worker's process has been killed.
struct Killed {};

/// What workers ask of the simulation.
class World {
 public:
  virtual std::unique_ptr<remote::Transport> connect(int worker, Sleeper& sleeper,
                                                     remote::MessageEnd& end,
                                                     double const& frozen_s) = 0;
  virtual void made(int worker, std::size_t layer, double value) = 0;
  virtual void leaves(int worker) = 0;
  /// What weights of a layer contain that a worker has taken, as their values show it.
  /// @param clock   [workers] pushes of each; empty: they do not show it
  /// @param rounds  that they must contain
  virtual void sees(int worker, std::size_t layer, Values const& clock, std::uint32_t rounds) = 0;
  virtual void wrong(std::string const& words) = 0;

 protected:
  ~World() = default;
};

class Worker final : public Sleeper,
                     private stagger::detail::ParameterListener,
                     private sim::EventTarget {
 public:
  Worker(World& world, sim::SharedTime& time, Model const& model, int number,
         std::vector<std::size_t> const& elements, stagger::detail::WorkerRules rules,
         std::uint64_t seed, double first)
      : world_(world),
        time_(time),
        model_(model),
        number_(number),
        elements_(elements),
        rules_(std::move(rules)),
        random_(seed),
        first_(first),
        layers_(elements.size()),
        main_(std::make_unique<Strand>([this] { live(); })) {
    time_.queue.at(0, *this, 0, 0);
  }
  Worker(Worker const&) = delete;
  Worker& operator=(Worker const&) = delete;
  ~Worker() { time_.queue.remove(*this); }

  // Of its plan:
  void plan(int minibatches) { planned_ = minibatches_ = minibatches; }
  double compute_s = 0.1;  // of a minibatch, at least
  double begins_s = 0;
  std::size_t parts = 1;  // in which its layers push and ask in a step, one after the other
  int attempts = 3;
  double frozen_s = 0;       // its process does nothing until then
  double rises_s = -1;       // behind having been killed; negative: never
  int fails_at = 0;          // the minibatch in which it throws, counted from 1; 0: none
  int leaves_at = -1;        // it leaves for a while when so many minibatches are left
  double absent_s = 0;       // or, if that is negative, for good
  bool two_streams = false;  // where it streams
  std::size_t clocks =
      0;            // elements at the end of each layer that count the pushes of a worker each
  double tick = 0;  // what it pushes for its own

  [[nodiscard]] int number() const noexcept { return number_; }
  /// Minibatches.
  [[nodiscard]] int planned() const noexcept { return planned_; }
  [[nodiscard]] bool over() const noexcept { return main_->fiber.ended(); }
  [[nodiscard]] bool done() const noexcept { return done_; }
  [[nodiscard]] bool killed() const noexcept { return killed_; }
  [[nodiscard]] bool ever_killed() const noexcept { return ever_killed_; }
  [[nodiscard]] bool has_left() const noexcept { return left_; }
  [[nodiscard]] bool left_for_good() const noexcept { return left_ && absent_s < 0; }
  /// Whether it has begun one stream, in which it is or which it has ended well.
  [[nodiscard]] bool in_first_stream() const noexcept { return streams_ == 1; }
  [[nodiscard]] bool in_midst() const noexcept { return midst_; }
  /// How many pushes of a layer it has made.
  [[nodiscard]] std::uint32_t pushes(std::size_t l) const noexcept { return layers_[l].pushes; }
  [[nodiscard]] std::vector<std::string> const& sentences() const noexcept { return sentences_; }
  /// What it has at the end.
  [[nodiscard]] Values values(std::size_t l) const {
    Values all(elements_[l]);
    if (!all.empty()) std::memcpy(all.data(), layers_[l].bytes.data(), all.size() * sizeof(double));
    return all;
  }

  /// Lets it look whether what it waits for is there.
  void wake() override {
    for (Strand* const each : {main_.get(), aside_.get()})
      if (each != nullptr && each->waits)
        time_.queue.at(time_.queue.now_s(), *this, 0, each->pause);
  }
  /// Its process ends at once.
  void kill() {
    if (over()) return;
    killed_ = ever_killed_ = true;
    frozen_s = 0;
    if (main_->waits) resume(*main_);
  }

 private:
  struct Layer {
    double value = 0;
    std::uint32_t contained = 0;
    std::uint32_t asked = 0;
    std::uint32_t there = 0;  // on arrival, rounds in what has come
    bool waits = false;
    std::uint32_t pushes = 0;  // that it made, ever
    std::vector<std::byte> bytes{};
    std::vector<std::byte> pushed{};  // the last push, of which a part may be late
    std::size_t late = 0;             // how many of its first bytes, in this step
    Values first{};                   // [workers] least pushes that the values it takes may count
  };
  /// What stands for a thread of its process.
  struct Strand {
    explicit Strand(std::function<void()> body) : fiber(std::move(body)) {}
    Fiber fiber;
    std::size_t pause = 0;  // number of the one that it is in
    bool waits = false;
  };
  struct LabConnector final : remote::Connector {
    explicit LabConnector(Worker& of) : worker(of) {}
    std::unique_ptr<remote::Transport> connect(remote::MessageEnd& end) override {
      return worker.world_.connect(worker.number_, worker, end, worker.frozen_s);
    }
    [[nodiscard]] double deadline_s() const override { return connection_s; }
    [[nodiscard]] std::string name() const override { return "port 7"; }
    [[nodiscard]] double now_s() const override { return worker.time_.queue.now_s(); }
    void wait(std::unique_lock<std::mutex>& lock, std::condition_variable&,
              double most_s) const override {
      lock.unlock();
      struct Relock {
        std::unique_lock<std::mutex>& lock;
        ~Relock() { lock.lock(); }
      } const relock{lock};
      worker.pause(most_s);
    }
    std::unique_ptr<Aside> run_aside(void (*body)(void*), void* of) const override {
      struct OnStrand final : Aside {
        OnStrand(Worker& worker, void (*body)(void*), void* of) : own(worker) {
          own.aside_ = std::make_unique<Strand>([body, of] { body(of); });
          own.time_.queue.at(own.time_.queue.now_s(), own, 0, own.aside_->pause = ++own.pauses_);
        }
        ~OnStrand() override {
          while (!own.aside_->fiber.ended()) own.resume(*own.aside_);
          own.aside_ = nullptr;
        }
        Worker& own;
      };
      return std::make_unique<OnStrand>(worker, body, of);
    }
    Worker& worker;
  };

  /// Until it is woken, or so much time has passed.
  void pause(double most_s) {
    Strand& own = *runs_;
    own.pause = ++pauses_;
    time_.queue.at(time_.queue.now_s() + most_s, *this, 0, own.pause);
    own.waits = true;
    Fiber::suspend();
    own.waits = false;
    if (killed_ && &own == main_.get()) throw Killed();
  }
  void resume(Strand& strand) {
    Strand* const before = std::exchange(runs_, &strand);
    strand.fiber.resume();
    runs_ = before;
    // What the second has done may be what the first waits for.
    if (&strand == aside_.get() && main_->waits)
      time_.queue.at(time_.queue.now_s(), *this, 0, main_->pause);
  }
  void pass(double s) {
    double const until_s = time_.queue.now_s() + s;
    do pause(until_s - time_.queue.now_s());
    while (time_.queue.now_s() < until_s);
  }
  void happen(std::uint32_t, std::size_t number) override {
    for (Strand* const each : {main_.get(), aside_.get()}) {
      if (each == nullptr || number != each->pause || each->fiber.ended()) continue;
      if (time_.queue.now_s() < frozen_s) return time_.queue.at(frozen_s, *this, 0, number);
      return resume(*each);
    }
  }

  void live() {
    for (;;) {
      try {
        if (begins_s > 0) pass(begins_s);
        work();
        return;
      } catch (Killed) {
        if (rises_s < 0) return;
      } catch (std::exception const& error) {
        sentences_.emplace_back(error.what());
        return;
      }
      killed_ = false;
      begins_s = rises_s;
      rises_s = -1;
    }
  }

  void work() {
    while (!visit()) pass(absent_s);
  }
  /// From when it joins the server until it leaves. @return whether it does not come back
  bool visit() {
    stagger::FixedArray<stagger::detail::LayerParameters> own(elements_.size());
    for (std::size_t l = 0; l < own.size(); ++l) declare(own[l], l);
    remote::RemoteLink link(std::make_unique<LabConnector>(*this), number_);
    link_ = &link;
    lost_ = nullptr;
    link.join({own.data(), own.size()}, rules_, *this);
    for (int attempt = 0; attempt < attempts;) {
      try {
        ++streams_;
        link.begin();
        if (model_.late != nullptr) await_first();
        read_newest();
        midst_ = true;
        int const all = minibatches_;
        int const count = two_streams && all == planned_ ? (all + 1) / 2 : all;
        if (model_.late != nullptr)
          late_steps();
        else if (!model_.streams)
          steps();
        else
          model_.adds == Adds::on_arrival ? stream_of_newest(count) : stream(count);
        if (model_.streams) minibatches_ -= count;
        midst_ = false;
        link.end(nullptr);
        done_ = minibatches_ == 0;
        if (!done_ && !leaves()) continue;  // the next stream
        left_ = left_ || !done_;
        world_.leaves(number_);
        link.leave();
        return done_ || absent_s < 0;
      } catch (stagger::Error const& error) {
        sentences_.emplace_back(error.what());
      }
      midst_ = false;
      lost_ = nullptr;
      link.end(std::make_exception_ptr(stagger::Error(stagger::Errc::io, sentences_.back())));
      if (++attempt < attempts) pass(random_.between(0, 3));
      lost_ = nullptr;
    }
    link.leave();
    return true;
  }
  [[nodiscard]] bool leaves() const { return minibatches_ == leaves_at && !left_; }

  void declare(stagger::detail::LayerParameters& layer, std::size_t l) {
    stagger::detail::ParameterDeclaration d;
    Values const first(elements_[l], first_);
    d.name = "w";
    d.type = stagger::ElementType::f64;
    d.size = first.size();
    d.initial.assign(reinterpret_cast<std::byte const*>(first.data()),
                     first.size() * sizeof(double));
    stagger::List<stagger::detail::ParameterDeclaration> declared;
    if (!first.empty()) declared.push_back(std::move(d));
    layer.adopt(std::move(declared), static_cast<int>(l), 0);
    layers_[l].bytes.assign(layer.bytes_of_values(), std::byte{0});
  }
  void read_newest() {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      link_->read(l, layers_[l].bytes.data());
      take_over(l);
      layers_[l].contained = 0;
      layers_[l].first = clock_of(l);
    }
  }
  /// [workers] pushes of each that the values of a layer count.
  [[nodiscard]] Values clock_of(std::size_t l) const {
    Values const now = values(l);
    Values clock;
    for (std::size_t n = 0; n < clocks && !now.empty(); ++n)
      clock.push_back(now[now.size() - clocks + n] - first_);
    return clock;
  }
  void take_over(std::size_t l) {
    Values const now = values(l);
    for (std::size_t i = 0; i + clocks < now.size(); ++i)
      if (now[i] != now[0] && model_.late == nullptr)  // where parts are late, a failure may
                                                       // leave them behind
        world_.wrong("a worker takes a layer of two kinds of weights");
    layers_[l].value = now.empty() ? 0 : now[0];
  }
  void push(std::size_t l, bool last) {
    midst_ = midst_ && !last;
    link_->push(l, make_push(l), last);
  }
  std::byte const* make_push(std::size_t l) {
    Layer& layer = layers_[l];
    double value = 64 * (1.0 + static_cast<double>(random_.below(1U << 24U)));
    if (stagger::staleness::averages(model_.pushes)) value += layer.value;
    world_.made(number_, l, value);
    ++layer.pushes;
    Values made(elements_[l], value);
    for (std::size_t n = 0; n < clocks && !made.empty(); ++n)
      made[made.size() - clocks + n] = n == static_cast<std::size_t>(number_) ? tick : 0;
    layer.pushed.assign(layer.bytes.size(), std::byte{0});
    if (!made.empty()) std::memcpy(layer.pushed.data(), made.data(), made.size() * sizeof(double));
    return layer.pushed.data();
  }

  void ask(std::uint32_t rounds) { ask(rounds, 0, layers_.size()); }
  void ask(std::uint32_t rounds, std::size_t first, std::size_t last) {
    for (std::size_t l = first; l < last; ++l) layers_[l].waits = true, layers_[l].asked = rounds;
    for (std::size_t l = first; l < last; ++l) link_->ask(l, rounds);
  }
  void await() {
    await([this] {
      return chooses_ || std::any_of(layers_.begin(), layers_.end(),
                                     [](auto const& each) { return each.waits; });
    });
  }
  template <class Missing> void await(Missing missing) {
    double const until_s = time_.queue.now_s() + longest_wait_s;
    while (missing() && !lost_) {
      if (time_.queue.now_s() >= until_s) {
        std::string const whom = link_->waits_for();
        throw stagger::Error(
            stagger::Errc::deadline,
            stagger::text("worker ", number_, " has waited for ", longest_wait_s, " s for ",
                          whom.empty() ? "weights on their way" : whom, "; see what it does"));
      }
      pause(until_s - time_.queue.now_s());
    }
    if (lost_) std::rethrow_exception(lost_);
  }
  void take(std::uint32_t rounds) {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      Layer& layer = layers_[l];
      std::uint32_t const before = layer.contained;
      if (rounds == stagger::detail::all_rounds)
        link_->take(l, rounds, layer.bytes.data());
      else
        layer.contained = link_->take(l, rounds, layer.bytes.data()).own();
      if (layer.contained < before)
        world_.wrong(stagger::text("worker ", number_, " takes weights with ", layer.contained,
                                   " of its pushes behind some with ", before));
      if (layer.contained < rounds && rounds != stagger::detail::all_rounds)
        world_.wrong(stagger::text("worker ", number_, " takes weights with ", layer.contained,
                                   " of its pushes where ", rounds, " are needed"));
      take_over(l);
      if (rounds == stagger::detail::all_rounds) continue;
      Values const clock = clock_of(l);
      auto const own = static_cast<std::size_t>(number_);
      for (std::size_t n = 0; n < clock.size(); ++n)
        if (clock[n] < layer.first[n])
          world_.wrong(stagger::text("worker ", number_, " takes weights with ", clock[n],
                                     " pushes of worker ", n, " behind some with ",
                                     layer.first[n]));
      if (!clock.empty() && clock[own] < layer.first[own] + layer.contained)
        world_.wrong(stagger::text("worker ", number_, " takes weights with ", clock[own],
                                   " of its pushes, and is told of ", layer.contained, " behind ",
                                   layer.first[own]));
      layer.first = clock;
      if (!clock.empty()) layer.first[own] -= layer.contained;
      world_.sees(number_, l, clock, rounds);
    }
  }
  [[nodiscard]] std::uint32_t needs(int minibatch) const {
    return static_cast<std::uint32_t>(std::max(0, model_.needs(minibatch)));
  }
  void compute() {
    pass(random_.one_in(3) ? compute_s * random_.between(1, 3) : compute_s);
    require_stream();
    if (++computed_ == fails_at)
      throw stagger::Error(stagger::Errc::bad_data, "an error of its own; look at the batch");
  }
  void require_stream() const {
    if (lost_) std::rethrow_exception(lost_);
  }

  /// As StepExchange. Steps that were taken in an attempt that failed are not taken again.
  void steps() {
    std::uint32_t rounds = 0;
    for (int step = 0; minibatches_ > 0 && !leaves(); ++step, --minibatches_) {
      compute();
      if ((step + 1) % model_.per_push != 0) continue;
      std::uint32_t const before = std::exchange(rounds, std::max(rounds, needs(step + 1)));
      // Of a round that it has, it adds its own later changes itself.
      bool const asks = rounds != before || model_.adds != Adds::in_worker_order;
      // A stage pushes and asks when its last backward pass has ended, a group's members when they
      // have added up, on ranks that others do not wait for.
      for (std::size_t part = parts, last = layers_.size(); part-- > 0;) {
        std::size_t const first = layers_.size() * part / parts;
        if (part + 1 != parts) pass(compute_s / 4), require_stream();
        for (std::size_t l = last; l-- > first;) push(l, false);
        if (asks) ask(rounds, first, last);
        last = first;
      }
      if (!asks) continue;
      await();
      take(rounds);
    }
  }
  /// As OverlappedExchange: the first step begins when the worker knows what is late in it.
  void await_first() {
    for (Layer& layer : layers_) layer.late = 0, layer.waits = false;
    step_ = 0;
    chooses_ = true;
    link_->ask_late(0);
    await();
  }
  /// Likewise, of one stage.
  void late_steps() {
    using Part = stagger::detail::ByteRange;
    auto const ask_part = [this](std::size_t l, std::uint32_t rounds, Part part) {
      if (part.size() == 0) return;
      layers_[l].waits = true, layers_[l].asked = rounds;
      link_->ask(l, rounds, part);
    };
    auto const take_part = [this](std::size_t l, std::uint32_t rounds, Part part) {
      if (part.size() != 0) link_->take(l, rounds, layers_[l].bytes.data(), part);
    };
    auto const late = [this](std::size_t l) { return Part{0, layers_[l].late}; };
    auto const urgent = [this](std::size_t l) {
      return Part{layers_[l].late, layers_[l].bytes.size()};
    };
    for (step_ = 0;; ++step_, --minibatches_) {
      std::vector<Part> before;
      for (std::size_t l = 0; l < layers_.size(); ++l) {
        before.push_back(step_ == 0 ? Part{0, 0} : late(l));
        ask_part(l, step_, before.back());
      }
      bool const ends = minibatches_ == 0 || leaves();
      chooses_ = step_ != 0 && !ends;
      if (chooses_) link_->ask_late(step_);
      if (!ends) compute();
      await();
      for (std::size_t l = 0; l < layers_.size(); ++l) take_part(l, step_, before[l]);
      for (std::size_t l = 0; l < layers_.size(); ++l) take_over(l);
      if (ends) return;
      link_->report(random_.between(0, 1));
      for (std::size_t l = 0; l < layers_.size(); ++l) {
        if (elements_[l] == 0) continue;
        std::byte const* const values = make_push(l);
        if (late(l).size() == 0)
          link_->push(l, values, false);
        else if (urgent(l).size() != 0)
          link_->push(l, values, false, urgent(l));
      }
      for (std::size_t l = 0; l < layers_.size(); ++l) ask_part(l, step_ + 1, urgent(l));
      await();
      for (std::size_t l = 0; l < layers_.size(); ++l) {
        take_part(l, step_ + 1, urgent(l));
        if (late(l).size() != 0) link_->push(l, layers_[l].pushed.data(), false, late(l));
      }
    }
  }
  void late_layers(std::uint32_t step, stagger::detail::LateSet const& set) noexcept override {
    if (step != step_ || !chooses_)
      world_.wrong(stagger::text("worker ", number_, " is told what is late in step ", step));
    for (std::size_t l = 0; l < layers_.size(); ++l)
      layers_[l].late = set.bytes(l, layers_[l].bytes.size());
    chooses_ = false;
  }
  /// As StreamExchange, of one stage.
  void stream(int count) {
    std::vector<std::uint32_t> asks;
    for (int m = 0; m < count; ++m)
      if (needs(m) > (asks.empty() ? 0 : asks.back())) asks.push_back(needs(m));
    asks.push_back(stagger::detail::all_rounds);
    std::size_t asked = 0;
    std::uint32_t have = 0;
    ask(asks[asked++]);
    auto const finish = [&](int m) {
      if ((m + 1) % model_.per_push != 0 && m + 1 != count) return;
      for (std::size_t l = layers_.size(); l-- > 0;) push(l, m + 1 == count);
    };
    for (int m = 0; m < count; ++m) {
      if (m >= model_.per_push) finish(m - model_.per_push);
      if (needs(m) > have) {
        await();
        take(have = needs(m));
        ask(asks[asked++]);
      }
      compute();
    }
    for (int m = std::max(0, count - model_.per_push); m < count; ++m) finish(m);
    await();
    take(stagger::detail::all_rounds);
  }

  /// Likewise, where waves are added on arrival.
  void stream_of_newest(int count) {
    std::vector<std::uint32_t> needed;  // by each version made of weights of the server
    for (int m = model_.per_push; m < count; ++m)
      if ((m + 1) % model_.per_push == 0) needed.push_back(needs(m));
    needed.push_back(stagger::detail::all_rounds);
    std::size_t next = 0;
    std::uint32_t asked = 0;
    for (Layer& layer : layers_) layer.there = 0, layer.waits = false;
    auto const there = [this] {
      std::uint32_t least = stagger::detail::all_rounds;
      for (Layer const& layer : layers_) least = std::min(least, layer.there);
      return least;
    };
    auto const ask_for = [&](std::uint32_t rounds) {
      asked = std::max(asked, rounds);
      ask(rounds);
    };
    auto const ask_to_wait = [&] {
      if (needed[next] > std::max(there(), asked)) ask_for(needed[next]);
    };
    auto const finish = [&](int m) {
      if ((m + 1) % model_.per_push != 0 && m + 1 != count) return;
      for (std::size_t l = layers_.size(); l-- > 0;) push(l, m + 1 == count);
      if (needed[next] == stagger::detail::all_rounds) return;
      std::uint32_t const rounds = needed[next + (needed[next] <= there() ? 1 : 0)];
      if (rounds <= there() || rounds == stagger::detail::all_rounds)
        ask_for(0);
      else if (rounds > asked)
        ask_for(rounds);
    };
    ask_to_wait();
    for (int m = 0; m < count; ++m) {
      if (m >= model_.per_push) finish(m - model_.per_push);
      if (m >= model_.per_push && (m + 1) % model_.per_push == 0) {
        await([&] { return there() < needed[next]; });
        take(needed[next++]);
        ask_to_wait();
      }
      compute();
    }
    for (int m = std::max(0, count - model_.per_push); m < count; ++m) finish(m);
    await();
    take(stagger::detail::all_rounds);
  }

  void arrived(std::size_t l, std::uint32_t rounds) noexcept override {
    bool const more = model_.adds != Adds::in_worker_order && rounds > layers_[l].asked;
    layers_[l].there = rounds;
    if (!layers_[l].waits || (layers_[l].asked != rounds && !more))
      world_.wrong(stagger::text("worker ", number_, " is told of ", rounds, " rounds of layer ", l,
                                 ", but had asked for ", layers_[l].asked));
    layers_[l].waits = false;
  }
  void lost(std::exception_ptr why) noexcept override { lost_ = std::move(why); }

  World& world_;
  sim::SharedTime& time_;
  Model const& model_;
  int number_;
  std::vector<std::size_t> const& elements_;
  stagger::detail::WorkerRules rules_;
  Random random_;
  double first_;
  std::vector<Layer> layers_;
  remote::RemoteLink* link_ = nullptr;
  std::exception_ptr lost_;
  std::vector<std::string> sentences_;
  int planned_ = 1;
  int minibatches_ = 1;  // that are left
  std::size_t pauses_ = 0;
  std::uint32_t step_ = 0;  // in its stream, where layers may be late
  bool chooses_ = false;    // it waits until it is told which are late
  bool killed_ = false;
  bool ever_killed_ = false;
  bool done_ = false;
  bool left_ = false;                     // for a while, or for good
  bool midst_ = false;                    // in a stream, behind its first weights
  int streams_ = 0;                       // that it has begun
  int computed_ = 0;                      // minibatches
  std::unique_ptr<Strand> main_, aside_;  // the second makes connections, if there is one
  Strand* runs_ = nullptr;
};

}  // namespace lab
