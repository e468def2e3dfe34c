// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/layer.hpp>

#include "catch.hpp"

#include <string>

namespace layer_test {

namespace {

using namespace stagger;
using detail::LayerAction;
using detail::LayerOps;
using detail::WantedGradients;

/// What its functions were called with: F, B, I, W, and whether scratch memory began anew.
struct Log {
  std::string calls;
  char const* scratch = nullptr;
  int input = 1, dy = 2, dx = 3, saved = 4;

  void add(char kind, Context& context) {
    calls += kind;
    char const* const here = context.scratch<char>(8).data();
    if (scratch != nullptr && here != scratch) calls += '+';  // behind that of the call before
    scratch = here;
    if (context.layer() != 7 || context.microbatch() != 5) calls += '!';
  }
  void expect(bool right) {
    if (!right) calls += '?';
  }
};

Log& log_of(void* object) { return *static_cast<Log*>(object); }

void backward(void* object, Context& context, void const* x, void const* dy, void* dx,
              void* saved) {
  Log& log = log_of(object);
  log.add('B', context);
  log.expect(x == &log.input && dy == &log.dy && dx == &log.dx && saved == &log.saved);
}
void backward_input(void* object, Context& context, void const* x, void const* dy, void* dx,
                    void* saved) {
  Log& log = log_of(object);
  log.add('I', context);
  log.expect(x == &log.input && dy == &log.dy && dx == &log.dx && saved == &log.saved);
}
void backward_weight(void* object, Context& context, void const* x, void const* dy, void* saved) {
  Log& log = log_of(object);
  log.add('W', context);
  log.expect(x == &log.input && dy == &log.dy && saved == &log.saved);
}

/// The functions of a layer that has those which are named.
LayerOps layer_with(std::string const& functions) {
  auto const has = [&](char kind) { return functions.find(kind) != std::string::npos; };
  LayerOps ops{};
  if (has('B')) ops.backward = &backward;
  if (has('I')) ops.backward_input = &backward_input;
  if (has('W')) ops.backward_weight = &backward_weight;
  return ops;
}

std::string calls(std::string const& functions, WantedGradients want) {
  Log log;
  LayerOps const ops = layer_with(functions);
  Context context;
  for (int round = 0; round < 2; ++round) {  // scratch memory has settled in the second
    log.calls.clear();
    log.scratch = nullptr;
    detail::backward_layer(context, LayerAction{&log, &ops, nullptr, 7, 5}, want, &log.input,
                           &log.dy, &log.dx, &log.saved);
  }
  return log.calls;
}

}  // namespace

TEST_CASE("engine/backward_layer: calls what a layer has for the gradients that are wanted",
          "[engine]") {
  constexpr WantedGradients all{}, input{true, false}, weight{false, true};
  struct Case {
    char const* functions;
    char const* all;
    char const* input;
    char const* weight;
  };
  for (Case const& one : {Case{"B", "B", "B", ""},     // does not split: all of it in I
                          Case{"BW", "B", "B", ""},    // nor with one half only
                          Case{"BIW", "B", "I", "W"},  // at once is one pass
                          Case{"BI", "B", "I", ""},    // no parameters
                          Case{"IW", "IW", "I", "W"},  //
                          Case{"I", "I", "I", ""},     // no parameters
                          Case{"W", "W", "", "W"}}) {  // the first layer: nobody asks for dx
    CAPTURE(one.functions);
    CHECK(calls(one.functions, all) == one.all);
    CHECK(calls(one.functions, input) == one.input);
    CHECK(calls(one.functions, weight) == one.weight);
  }
}

TEST_CASE("engine/forward_layer: shows a layer its parameters and gives it new scratch memory",
          "[engine]") {
  LayerOps ops{};
  ops.forward = [](void* object, Context& context, void const* x, void* y, void* saved) {
    Log& log = log_of(object);
    log.add('F', context);
    log.expect(x == &log.input && y == &log.dy && saved == &log.saved);
  };
  Log log;
  Context context;
  LayerAction const action{&log, &ops, nullptr, 7, 5};
  for (int call = 0; call < 3; ++call)
    detail::forward_layer(context, action, &log.input, &log.dy, &log.saved);
  CHECK(log.calls == "FFF");
}

}  // namespace layer_test
