// SPDX-License-Identifier: Apache-2.0
// A worker in each process that mpirun starts, and a parameter server whose layers lie in all of
// them. Workers learn from data of their own, in step: mpirun -n 2 21_workers_over_mpi
//
// uses: stagger::mpi
// expect: worker 0 of 1: step 19  loss 0\.0000
#include <cstdio>

#include <stagger/mpi/parameter_server.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/stagger.hpp>

namespace sg = stagger;
using Batch = sg::Batch<sg::Tensor<>, sg::Tensor<>>;

struct Scale {  // y = a x, element by element
  using Input = sg::Tensor<>;
  using Output = sg::Tensor<>;
  sg::Parameter<> a{"a", {1}};
  auto parameters() { return std::tie(a); }
  void forward(sg::Context& c, Input const& x, Output& y, sg::NothingSaved&) {
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = c[a][0] * x[i];
  }
  void backward(sg::Context& c, Input const& x, Output const& dy, Input& dx, sg::NothingSaved&) {
    dx.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) dx[i] = c[a][0] * dy[i];
    for (std::size_t i = 0; i < x.size(); ++i) c.gradient(a)[0] += x[i] * dy[i];
  }
};

Batch batch_of(int worker, int step) {  // the model is to learn y = 6 x
  Batch batch;
  for (int m = 0; m < 4; ++m) {
    float const x = 0.25F * static_cast<float>((3 * m + 2 * step + worker) % 9 - 4);
    batch.inputs.push_back(sg::Tensor<>::of({x}));
    batch.targets.push_back(sg::Tensor<>::of({6 * x}));
  }
  return batch;
}

int main() {
  sg::mpi::Session const session(sg::mpi::Threads::multiple);
  int const process = session.process(), processes = session.processes();
  sg::optimizer::Sgd const sgd{.rate = 0.05};
  sg::mpi::ParameterServer const server({.workers = processes}, sgd);
  {
    auto train = sg::Pipeline{Scale{}, Scale{}}.with(
        sg::staleness::Synchronous{}, server.worker(process), sgd, sg::loss::MeanSquaredError<>{},
        sg::host::Threads{2});
    double loss = 0;
    for (int step = 0; step < 20; ++step) {
      Batch const batch = batch_of(process, step);
      loss = sg::run(train.step(batch)).loss;
    }
    std::printf("worker %d of %d: step 19  loss %.6f\n", process, processes, loss);
  }
  server.serve();  // until all workers have gone
}
