// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/detail/stop_token.hpp>
#include <stagger/core/stop_token.hpp>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"

namespace stop_token_test {

namespace {

// The same cases for our own tokens and for those in use, which are the standard library's where it has them.
struct Own {
  using Source = stagger::detail::stopping::stop_source;
  using Token = stagger::detail::stopping::stop_token;
  template <class F> using Callback = stagger::detail::stopping::stop_callback<F>;
  static Source none() { return Source(stagger::detail::stopping::nostopstate); }
};
struct InUse {
  using Source = stagger::stop_source;
  using Token = stagger::stop_token;
  template <class F> using Callback = stagger::stop_callback<F>;
  static Source none() { return Source(stagger::nostopstate); }
};

struct Count {
  int* runs;
  void operator()() const { ++*runs; }
};

}  // namespace

TEMPLATE_TEST_CASE("core/stop_token: a request is seen by all tokens, and has its effect once",
                   "[core]", Own, InUse) {
  typename TestType::Source source;
  auto const token = source.get_token();
  auto const copy = token;
  CHECK(token == copy);
  CHECK(token.stop_possible());
  CHECK_FALSE(copy.stop_requested());
  CHECK(source.request_stop());
  CHECK_FALSE(source.request_stop());
  CHECK(copy.stop_requested());
  CHECK(source.stop_requested());
  CHECK(token != typename TestType::Source().get_token());
}

TEMPLATE_TEST_CASE("core/stop_token: nobody can ask where there is no source", "[core]", Own,
                   InUse) {
  typename TestType::Token token;
  CHECK_FALSE(token.stop_possible());
  auto none = TestType::none();
  CHECK_FALSE(none.stop_possible());
  CHECK_FALSE(none.request_stop());
  CHECK(none.get_token() == token);
  {
    typename TestType::Source source;
    auto second = source;
    auto third = std::move(source);
    second = third;
    token = third.get_token();
    CHECK(token.stop_possible());
  }
  CHECK_FALSE(token.stop_possible());  // the last source is gone
  typename TestType::Source asked;
  token = asked.get_token();
  asked.request_stop();
  asked = TestType::none();
  CHECK(token.stop_possible());  // it was requested, for ever
  CHECK(token.stop_requested());
}

TEMPLATE_TEST_CASE(
    "core/stop_token: a callback runs once, at once if it comes late, and not after its end",
    "[core]", Own, InUse) {
  using Callback = typename TestType::template Callback<Count>;
  int first = 0, gone = 0, late = 0, never = 0;
  typename TestType::Source source;
  {
    Callback const a(source.get_token(), Count{&first});
    std::optional<Callback> b;
    b.emplace(source.get_token(), Count{&gone});
    Callback const c(source.get_token(), Count{&first});
    b.reset();
    CHECK(source.request_stop());
    CHECK(first == 2);
    Callback const d(source.get_token(), Count{&late});
    CHECK(late == 1);
  }
  source.request_stop();
  Callback const e(typename TestType::Token{}, Count{&never});
  CHECK(first == 2);
  CHECK(gone == 0);
  CHECK(late == 1);
  CHECK(never == 0);
}

namespace {
template <class Tokens> struct EndsItself {
  std::optional<typename Tokens::template Callback<EndsItself>>* self;
  std::optional<typename Tokens::template Callback<Count>>* other;
  typename Tokens::Source* source;
  void operator()() const {
    other->reset();  // has not run
    *source = Tokens::none();
    self->reset();  // must not wait for itself
  }
};
}  // namespace

TEMPLATE_TEST_CASE(
    "core/stop_token: a callback may end itself, another, and the source that calls it", "[core]",
    Own, InUse) {
  typename TestType::Source source;
  int runs = 0;
  std::optional<typename TestType::template Callback<Count>> other;
  std::optional<typename TestType::template Callback<EndsItself<TestType>>> self;
  // The last to come is the first to run with ours; that of the standard library may do otherwise.
  other.emplace(source.get_token(), Count{&runs});
  self.emplace(source.get_token(), EndsItself<TestType>{&self, &other, &source});
  auto const token = source.get_token();
  source.request_stop();
  CHECK_FALSE(self.has_value());
  CHECK_FALSE(other.has_value());
  CHECK(runs <= 1);
  CHECK(token.stop_requested());
}

namespace {
struct Slow {
  std::atomic<bool>* entered;
  std::atomic<bool>* ending;
  int* finished;
  void operator()() const {
    *entered = true;
    while (!*ending) std::this_thread::yield();
    for (int i = 0; i < 200; ++i) std::this_thread::yield();  // room for one that does not wait
    *finished = 1;                                            // not atomic: who waits may read it
  }
};
}  // namespace

TEMPLATE_TEST_CASE("core/stop_token: the end of a callback waits for its call on another thread",
                   "[core]", Own, InUse) {
  std::atomic<bool> entered{false}, ending{false};
  int finished = 0;
  typename TestType::Source source;
  std::optional<typename TestType::template Callback<Slow>> callback;
  callback.emplace(source.get_token(), Slow{&entered, &ending, &finished});
  std::thread requester([&] { source.request_stop(); });
  while (!entered) std::this_thread::yield();
  ending = true;
  callback.reset();
  CHECK(finished == 1);
  requester.join();
}

TEMPLATE_TEST_CASE(
    "core/stop_token: callbacks that come and go while stopping is requested run at most once, and "
    "not "
    "after their end",
    "[core]", Own, InUse) {
  using Callback = typename TestType::template Callback<Count>;
  int twice = 0, missed = 0, effects = 0;
  for (int round = 0; round < 100; ++round) {
    typename TestType::Source source;
    auto const token = source.get_token();
    std::atomic<int> ready{0};
    std::atomic<int> had_effect{0};
    std::vector<int> wrong(2, 0), missing(2, 0);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        ++ready;
        bool more = true;
        while (more) {
          more = !token.stop_requested();
          int runs = 0;  // below the callback: a call after its end would be a use of what is gone
          {
            Callback const callback(token, Count{&runs});
          }
          wrong[t] += runs > 1 ? 1 : 0;
          missing[t] += !more && runs != 1 ? 1 : 0;  // requested before it came
        }
      });
    }
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&] {
        while (ready < 2) std::this_thread::yield();
        had_effect += source.request_stop() ? 1 : 0;
      });
    }
    for (auto& thread : threads) thread.join();
    twice += wrong[0] + wrong[1];
    missed += missing[0] + missing[1];
    effects += had_effect;
  }
  CHECK(twice == 0);
  CHECK(missed == 0);
  CHECK(effects == 100);
}

}  // namespace stop_token_test
