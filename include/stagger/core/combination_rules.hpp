// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The rules of which features of pipelines go together: the table of core/combinations.hpp.

#include <stagger/core/requirements.hpp>

// What the compiler says is a macro each, since it quotes the macros that a static_assert is in.
#define STAGGER_PLACEMENT_IGNORED                                                        \
  " has one place for all ranks, or one for each, so a placement would change nothing; " \
  "leave it out"
#define STAGGER_FLUSH_MISSING                                                               \
  " never flushes, so weights change under running microbatches, but the staleness model "  \
  "promises that they do not; use a schedule that flushes, such as schedule::OneFOneB, or " \
  "a staleness model that keeps weight versions"
#define STAGGER_SERVER_MISSING                                                              \
  " is one of several workers that train one model, but there is no parameter server; add " \
  "server.worker(n) of a collective::ParameterServer, or take staleness::Delayed for a "    \
  "pipeline alone"
#define STAGGER_SERVER_IDLE                                                                 \
  " is pushed to this parameter server; add a staleness model of several workers, such as " \
  "staleness::WaveSynchronous"
#define STAGGER_CUT_TWICE                                                                  \
  " are cut by hand; leave the partitioner out, or wrap the layers in one Sequential for " \
  "it to cut"
#define STAGGER_KERNEL_ON_ONE_DEVICE                                                         \
  " updates by a kernel, which a loop on the calling thread cannot run; give on_one_device " \
  "another optimizer"
#define STAGGER_KERNEL_ON_HOST                                                           \
  " updates by a kernel, which this device cannot run; give Pipeline::with a device of " \
  "stagger/cuda, or another optimizer"
#define STAGGER_STREAM_PROFILED                                                            \
  " measures steps, which a pipeline with an asynchronous staleness model does not take; " \
  "measure it with staleness::Synchronous"
#define STAGGER_NOT_IN_GROUPS                                                               \
  ", so that its layers cannot be pushed in groups while backward still runs; give with() " \
  "server.worker(n) without collective::GroupedPushes, or leave that out"
#define STAGGER_NO_SKIP(other)                                                        \
  " cannot leave out the update of a step with " other                                \
  ", where layers do not all update together at its end; let Options::non_finite be " \
  "NonFinite::fail or NonFinite::ignore"
#define STAGGER_EACH_PASS(other) \
  " cannot train with " other "; leave it out, or use Update::accumulate"
#define STAGGER_OWN_WEIGHTS                                                               \
  "a layer keeps its own weights (it has gradients_complete), which the engine does not " \
  "know, so that it cannot "

/// The rules: RULE(name, verdict, features that do not go together, features of which one mends
/// that, the subject of the sentence, the rest of it, why). Of several rules that hold, the first is
/// told. The subject may be replaced by one with a name or a number. What is refused where the
/// numbers are, such as 3 replicas for 2 positions, is not here.
#define STAGGER_RULES(RULE)                                                                        \
  /* told by the compiler */                                                                       \
  RULE(placement_ignored, not_built, placement, obeys_placement, "this device",                    \
       STAGGER_PLACEMENT_IGNORED,                                                                  \
       "In virtual time each rank has a processor of its own; ranks of one place would have to "   \
       "take "                                                                                     \
       "turns on it.")                                                                             \
  RULE(flush_missing, law, no_flush | synchronous, none, "this schedule", STAGGER_FLUSH_MISSING,   \
       "Forward of minibatch 2, update by minibatch 1, backward of minibatch 2: the two passes "   \
       "of minibatch 2 see different weights.")                                                    \
  RULE(server_missing, need, workers_model, server, "this staleness model",                        \
       STAGGER_SERVER_MISSING, "Workers meet at a server alone.")                                  \
  RULE(server_idle, need, server | asynchronous, workers_model, "nothing", STAGGER_SERVER_IDLE,    \
       "A model of one pipeline does not say when a push is made.")                                \
  RULE(cut_twice, law, hand_cut | partitioner, none, "these stages", STAGGER_CUT_TWICE,            \
       "Both say where stages begin.")                                                             \
  RULE(kernel_on_one_device, not_built, kernel | one_device, none, "this optimizer",               \
       STAGGER_KERNEL_ON_ONE_DEVICE,                                                               \
       "The loop would have to keep parameters in the memory of a device.")                        \
  RULE(kernel_on_host, need, kernel, enqueues | one_device, "this optimizer",                      \
       STAGGER_KERNEL_ON_HOST, "Parameters of such a device lie in the memory of the host.")       \
  /* optimizers that need whole parameters */                                                      \
  RULE(                                                                                            \
      split_whole_parameters, not_built, whole_parameters | layer_split, none, "the optimizer",    \
      " says that it is not element_wise, but each rank of a group has a part of a parameter; "    \
      "use one whose elements do not depend on each other, or leave partition::LayerSplit out",    \
      "The members of a group would have to gather a matrix, or to add up their parts of a norm.") \
  RULE(late_whole_parameters, law, whole_parameters | late, none, "the optimizer",                 \
       " says that it is not element_wise, but a part of a layer may be late; use one whose "      \
       "elements do not depend on each other, or staleness::Synchronous",                          \
       "The early part of a layer is updated, the late part arrives, and its update needs the "    \
       "whole gradient of the step: either the early part waits, or its update was another one.")  \
  /* weights that the engine does not know */                                                      \
  RULE(own_weights_versions, law, own_weights | asynchronous, none, STAGGER_OWN_WEIGHTS,           \
       "keep versions of them; use a schedule that flushes, with staleness::Synchronous, or "      \
       "declare them by parameters()",                                                             \
       "Forward of minibatch 2, the layer's own update by minibatch 1, backward of minibatch 2: "  \
       "the two passes of minibatch 2 see different weights.")                                     \
  RULE(own_weights_pushed, law, own_weights | server, none, STAGGER_OWN_WEIGHTS,                   \
       "push them to a parameter server; leave the server out and let the layer exchange them "    \
       "itself, or declare them by parameters()",                                                  \
       "Workers would train weights apart that nobody brings together.")                           \
  RULE(own_weights_replicas, law, own_weights | replicas, none, STAGGER_OWN_WEIGHTS,               \
       "add up the gradients of replicas; run one pipeline for each replica and let "              \
       "gradients_complete add them up, or declare them by parameters()",                          \
       "Each replica has a copy of the layer, which would train apart.")                           \
  RULE(own_weights_owners, law, own_weights | two_owners, none, STAGGER_OWN_WEIGHTS,               \
       "add up the gradients of a stage's owners; use a schedule with one owner for each stage, "  \
       "or declare them by parameters()",                                                          \
       "Each owner has a copy of the layer, which would train apart.")                             \
  RULE(own_weights_clipped, law, own_weights | clips, none, STAGGER_OWN_WEIGHTS,                   \
       "include their gradients in Options::clip_norm; leave it out and clip them in "             \
       "gradients_complete, or declare them by parameters()",                                      \
       "The norm of the other gradients alone would scale those alone.")                           \
  RULE(own_weights_skips, law, own_weights | skips, none, STAGGER_OWN_WEIGHTS,                     \
       "leave out their update by NonFinite::skip; let Options::non_finite be NonFinite::fail or " \
       "NonFinite::ignore",                                                                        \
       "The layer's own update, backward of an earlier layer, which is not finite: the layer has " \
       "updated.")                                                                                 \
  RULE(own_weights_moved, not_built, own_weights | moves_stages, none, STAGGER_OWN_WEIGHTS,        \
       "send them where a stage moves; let the schedule keep each stage on one rank for every "    \
       "number of microbatches, or declare them by parameters()",                                  \
       "The layer would have to be sent to the other process, or to read and write its weights.")  \
  RULE(own_weights_each_pass, not_built, own_weights | each_pass, none, STAGGER_OWN_WEIGHTS,       \
       "have them updated in each pass as others are; use Update::accumulate, or declare them by " \
       "parameters()",                                                                             \
       "gradients_complete would have to be called in each pass.")                                 \
  RULE(own_weights_profiled, not_built, own_weights | profiles, none, STAGGER_OWN_WEIGHTS,         \
       "measure it without leaving gradients in it; measure layers that declare them by "          \
       "parameters()",                                                                             \
       "The layer would have to be told that the gradients of a measured pass count for nothing.") \
  RULE(own_weights_stored, law, own_weights | restores, none, STAGGER_OWN_WEIGHTS,                 \
       "put them into a checkpoint; write and read them in your own way, with "                    \
       "Trainer::resume, or declare them by parameters()",                                         \
       "A checkpoint without them would go on with the weights of another step.")                  \
  /* pushes in groups */                                                                           \
  RULE(grouped_over_processes, not_built, grouped_pushes | own_stages, none,                       \
       "a worker over processes pushes at the end of a step", STAGGER_NOT_IN_GROUPS,               \
       "The processes agree at the end of a step that all of its gradients are there.")            \
  RULE(grouped_stream, not_built, grouped_pushes | asynchronous, none,                             \
       "a stream pushes after each of its waves", STAGGER_NOT_IN_GROUPS,                           \
       "A push of a wave could be cut into groups as that of a step is.")                          \
  RULE(                                                                                            \
      grouped_weights, not_built, grouped_pushes | averages, none,                                 \
      "the staleness model pushes weights", STAGGER_NOT_IN_GROUPS,                                 \
      "A stage would have to update, and push its weights, when its own last backward has ended, " \
      "before the others have theirs.")                                                            \
  RULE(grouped_late, not_built, grouped_pushes | late, none,                                       \
       "the staleness model says at the end of a step which layers are late",                      \
       STAGGER_NOT_IN_GROUPS,                                                                      \
       "Only layers of which an earlier step has decided that they are not late could be pushed "  \
       "before its end.")                                                                          \
  RULE(grouped_clipped, law, grouped_pushes | clips, none,                                         \
       "clip_norm needs the gradients of all layers", STAGGER_NOT_IN_GROUPS,                       \
       "Push of layer 2, backward of layer 1, norm of both: it scales the gradient of layer 2, "   \
       "which is pushed.")                                                                         \
  RULE(grouped_split, not_built, grouped_pushes | layer_split, none,                               \
       "partition::LayerSplit has ranks share layers", STAGGER_NOT_IN_GROUPS,                      \
       "A push of such a layer has a part of each member.")                                        \
  RULE(grouped_replicas, not_built, grouped_pushes | replicas | all_replicated | own_memory, none, \
       "every stage has several replicas, which push their sum at the end of a step on GPUs",      \
       STAGGER_NOT_IN_GROUPS,                                                                      \
       "A device would have to copy each group to the host when its sum is there.")                \
  /* replicas and sums */                                                                          \
  RULE(                                                                                            \
      replicas_of_a_stream, not_built, replicas | asynchronous | server, none, "replicas",         \
      " of a worker cannot take a stream of minibatches; leave Options::replicas out, or let the " \
      "staleness model be synchronous",                                                            \
      "Replicas would have to push the change of their sum, and all wait for the weights that "    \
      "one of them receives.")                                                                     \
  RULE(replicas_without_flush, not_built, replicas | asynchronous | own_memory, none, "replicas",  \
       " on GPUs add up their gradients at the end of a step, which an asynchronous staleness "    \
       "model does not have; use host::Threads, leave Options::replicas out, or let the "          \
       "staleness model be synchronous",                                                           \
       "Each GPU would need the versions of the weights, and each update the sum of GPUs.")        \
  RULE(replicas_apart_without_flush, not_built, replicas | asynchronous | own_stages, none,        \
       "replicas",                                                                                 \
       " in several processes add up their gradients at the end of a step, which an "              \
       "asynchronous staleness model does not have; use host::Threads, leave Options::replicas "   \
       "out, or let the staleness model be synchronous",                                           \
       "Processes would have to send their gradients, and the versions, for each update.")         \
  RULE(split_without_flush, not_built, layer_split | asynchronous, none, "partition::LayerSplit",  \
       " shares layers among ranks that update at the end of a step, which an asynchronous "       \
       "staleness model does not have; leave it out, or let the staleness model be synchronous",   \
       "All sections of a stage would have to see the same versions; where they update in each "   \
       "pass, both would say which weights a microbatch sees.")                                    \
  RULE(shards_without_replicas, need, shards | shards_states, replicas,                            \
       "AllReduce::shard_optimizer",                                                               \
       " shares the optimizer's state out to the replicas of a stage, and there are none; set "    \
       "Options::replicas, or leave it out",                                                       \
       "A single rank needs the whole state of its stage.")                                        \
  RULE(sums_by_no_library, need, by_library, library_sums, "collective::By::library",              \
       " asks for sums by MPI or NCCL, which this device does not use; take "                      \
       "collective::By::slices, or mpi::Processes or nccl::Gpus for the device",                   \
       "Such a device links neither library.")                                                     \
  /* workers of a parameter server */                                                              \
  RULE(server_out_of_reach, not_built, server, signalled, "this device",                           \
       " cannot push to a parameter server; use host::Threads, cuda::Gpus, mpi::Processes or "     \
       "sim::VirtualClock for its workers",                                                        \
       "Processes with a GPU each would have to agree, in each step, on what has arrived.")        \
  RULE(late_on_device, not_built, server | late | own_memory, none, "layers of a worker on a GPU", \
       " cannot be late; use host::Threads, mpi::Processes or sim::VirtualClock for its device, "  \
       "or a staleness model without late layers, such as staleness::Synchronous",                 \
       "Predictions, and the choice of late layers, would have to be kernels.")                    \
  RULE(stream_on_device, not_built, server | asynchronous | own_memory, none, "a worker on a GPU", \
       " takes no streams of minibatches; use host::Threads, mpi::Processes or "                   \
       "sim::VirtualClock for its device, or a staleness model that is taken by step",             \
       "The host would have to enqueue each minibatch when its weights have arrived.")             \
  RULE(groups_on_device, not_built, server | layer_split | own_memory, none, "a worker on a GPU",  \
       " has no groups of ranks that share layers; use host::Threads or sim::VirtualClock for "    \
       "its device, or leave partition::LayerSplit out",                                           \
       "What the first member receives would have to be copied to the others.")                    \
  RULE(step_by_host_rule, need, server | own_memory | pushes_no_changes, suits_server | averages,  \
       "a parameter server",                                                                       \
       " takes the steps of its workers on the host, where this optimizer has no rule; give the "  \
       "Rule of cuda::Enqueued an 'update(view, gradient_scale, step)' for the host, or let the "  \
       "staleness model push changes",                                                             \
       "The server has parameters and gradients in the memory of the host.")                       \
  RULE(change_by_kernel, need, server | own_memory | workers_model,                                \
       pushes_no_changes | suits_server, "a worker on a GPU",                                      \
       " that pushes changes needs an optimizer's kernel that makes them; have yours obey "        \
       "Update::changes, with 'static constexpr bool makes_changes = true;' in its Launch, or "    \
       "let the staleness model push gradients",                                                   \
       "The optimizer's state lies in the memory of the GPU.")                                     \
  RULE(server_in_one_process, not_built, server | own_stages, reaches_processes,                   \
       "a worker over processes",                                                                  \
       " cannot reach a parameter server that lies in one of them; use mpi::ParameterServer, or "  \
       "host::Threads for its device",                                                             \
       "Each process exchanges the layers of its own stages. Over TCP it would need a "            \
       "connection of its own.")                                                                   \
  RULE(replicas_over_processes, not_built, server | own_stages | replicas, none,                   \
       "a worker over processes",                                                                  \
       " has no replicas; leave Options::replicas out, use host::Threads for its device, or "      \
       "make more workers",                                                                        \
       "Replicas in several processes would have to make one push of their sum.")                  \
  RULE(late_replicas, not_built, server | late | replicas, none,                                   \
       "layers of a worker with replicas",                                                         \
       " cannot be late, since a rank would take up their values while others compute; leave "     \
       "Options::replicas out, or use staleness::Synchronous",                                     \
       "Replicas would need the values of late layers twice, before and after the change.")        \
  RULE(remote_virtual_time, not_built, remote | virtual_time, none, "a worker",                    \
       " runs in virtual time, which a server in another process does not share; give it "         \
       "host::Threads, or a server in this process",                                               \
       "Messages would have to carry virtual times, and each process to wait for those that are "  \
       "behind.")                                                                                  \
  RULE(stream_without_changes, not_built, server | asynchronous | pushes_no_changes, none,         \
       "a stream",                                                                                 \
       " pushes changes, not gradients: weights move on while the server works; let the "          \
       "staleness model push changes, or be synchronous",                                          \
       "A stage updates its own weights before the server answers (HetPipe, section 5); a worker " \
       "that pushes gradients would have to leave that out, as in Downpour SGD.")                  \
  RULE(stream_in_turn, law, server | asynchronous | adds_in_turn, none, "workers that stream",     \
       " cannot push in turn; let the staleness model add on arrival or in the order of workers",  \
       "Worker 1 waits for the push of worker 0, whose next push waits for weights with that of "  \
       "worker 1: a turn is a barrier of steps, which a stream does not have.")                    \
  RULE(moved_changes, not_built, moves_stages | keeps_changes, none,                               \
       "a stage has moved to another process, which",                                              \
       " lacks the changes that the worker has pushed; let the schedule keep stages where they "   \
       "are, or the staleness model add on arrival",                                               \
       "Kept changes would have to move with the stage.")                                          \
  RULE(moved_late_layers, not_built, moves_stages | late, none,                                    \
       "a stage has moved to another process, which",                                              \
       " lacks what was predicted of late layers; let the schedule keep stages where they are, "   \
       "or use staleness::Synchronous",                                                            \
       "Predictions would have to move with the stage.")                                           \
  RULE(durable_late_layers, not_built, durable | late | goes_on, none,                             \
       "a parameter server that keeps its layers in a folder",                                     \
       " cannot go on without a worker whose layers may be late; use OnFailure::fail_fast, or "    \
       "no ServerOptions::durable",                                                                \
       "The folder does not say which late layers a lost worker has pushed.")                      \
  RULE(restored_worker, not_built, restores | server, none, "a checkpoint",                        \
       " cannot be restored into a worker, since its next step takes the weights of the "          \
       "parameter server that it has joined; begin the layers of all workers with the "            \
       "checkpoint's values, or let the server be durable",                                        \
       "The values of the server would have to be restored with those of all workers.")            \
  /* updates of one stage before another */                                                        \
  RULE(clipped_stream, law, clips | asynchronous, none, "gradients of a stream",                   \
       " cannot be clipped by their norm over all stages, since each stage updates or pushes "     \
       "without waiting for the others; leave clip_norm out, or use a staleness model that is "    \
       "taken by step",                                                                            \
       "Update of the last stage, backward of the first stage, norm of both: it scales a "         \
       "gradient that was used.")                                                                  \
  RULE(owners_alone, law, two_owners | asynchronous, none, "a stage",                              \
       " has several owners, which must update together; use a schedule with one owner for each "  \
       "stage, or staleness::Synchronous",                                                         \
       "Each owner sees half of the microbatches, and no published method says which versions of " \
       "its weights they would see.")                                                              \
  RULE(owners_of_a_worker, need, two_owners | server, replicas, "a stage",                         \
       " has several owners, but each worker makes one push of it; give each position 1 replica "  \
       "by Options::replicas, or use a schedule that runs each stage on one rank",                 \
       "The engine's functions for replicas add up the gradients of owners.")                      \
  RULE(skipped_each_pass, not_built, skips | each_pass | own_memory, none, "NonFinite::skip",      \
       STAGGER_NO_SKIP("layers that are updated in each pass on a GPU"),                           \
       "The device would have to take back what earlier passes have updated, as the host does "    \
       "for a step that fails.")                                                                   \
  RULE(skipped_push, not_built, skips | server, none, "NonFinite::skip",                           \
       STAGGER_NO_SKIP("a parameter server"),                                                      \
       "The others wait for a push of the worker: it would have to say that it leaves one out, "   \
       "and "                                                                                      \
       "they to agree whether they do, too.")                                                      \
  RULE(skipped_stream, law, skips | asynchronous, none, "NonFinite::skip",                         \
       STAGGER_NO_SKIP("a staleness model without a flush"),                                       \
       "Update of the last stage, backward of the first stage, which is not finite: the "          \
       "minibatch has updated.")                                                                   \
  /* layers that groups of ranks share */                                                          \
  RULE(split_on_device, not_built, layer_split, shares_layers, "this device",                      \
       " cannot run groups of ranks that share layers; use cuda::Gpus, host::Threads, "            \
       "mpi::Processes or sim::VirtualClock, or leave partition::LayerSplit out",                  \
       "Columns of values would have to be exchanged between GPUs of several processes.")          \
  RULE(clipped_each_pass, law, each_pass | clips, none, "layers that are updated in each pass",    \
       STAGGER_EACH_PASS("Options::clip_norm"),                                                    \
       "Update of a shared layer by microbatch 1, backward of microbatch 2, norm of the step: "    \
       "it scales a gradient that was used.")                                                      \
  RULE(sharded_each_pass, not_built, each_pass | shards, none,                                     \
       "layers that are updated in each pass", STAGGER_EACH_PASS("AllReduce::shard_optimizer"),    \
       "Each member of a group would share out the state of its own part.")                        \
  RULE(pushed_each_pass, not_built, each_pass | server, averages,                                  \
       "layers that are updated in each pass",                                                     \
       " have no gradient of a step for a parameter server; use staleness::LocalSgd, which "       \
       "averages weights, or Update::accumulate",                                                  \
       "A worker would have to push the change of these layers over a step: its gradients are of " \
       "different weights, and used.")                                                             \
  RULE(owners_each_pass, not_built, two_owners | each_pass, none, "a stage",                       \
       " is run at two positions of the schedule, each with a group, which see different "         \
       "microbatches and so cannot update it together in each pass; use a schedule with one "      \
       "position for each stage, or Update::accumulate",                                           \
       "Both positions would have to bring their weights together in each pass.")                  \
  /* options and calls */                                                                          \
  RULE(captured_host, need, capture, captures, "Trainer::capture",                                 \
       " records a graph, which this device does not have; leave it out, or use cuda::Gpus or "    \
       "nccl::Gpus",                                                                               \
       "Trainers on such a device do not have this function.")                                     \
  RULE(untrained, law, forward_only | trains, none, "the schedule",                                \
       " made a table without a backward action, which cannot train; evaluate and predict with "   \
       "it, or train with a schedule such as 1f1b",                                                \
       "There is no gradient.")                                                                    \
  RULE(observed_device, not_built, observes | own_memory, none, "an observer",                     \
       " is told of gradients on the host, which this device keeps in memory of its own; leave "   \
       "Observe out, or use host::Threads",                                                        \
       "The host enqueues the update before the device has computed the gradients: it would have " \
       "to "                                                                                       \
       "wait for the device in each step, or the observer be given the memory of the device.")     \
  RULE(recompute_on_device, not_built, checks_recompute | own_memory, none,                        \
       "Options::check_recompute",                                                                 \
       " compares outputs in the memory of the host, but this device has memory of its own; "      \
       "leave it out, or check the stages on host::Threads",                                       \
       "A kernel would have to make the digest of a value.")                                       \
  RULE(profiled_replicas, not_built, profiles | replicas, none, "a profiler",                      \
       " measures each layer on one rank, so that it cannot measure replicas; leave "              \
       "Options::replicas out",                                                                    \
       "Times of different shares would have to be brought to one number of rows.")                \
  RULE(profiled_stream, not_built, profiles | asynchronous, none, "a profiler",                    \
       STAGGER_STREAM_PROFILED, "It would have to read the passes of a stream from its timeline.") \
  RULE(profile_unrecorded, need, profiles, records, "a profiler",                                  \
       " reads the times of recorded actions; set Options::record", "Nothing else times them.")    \
  RULE(captured_shapes, not_built, capture | shapes_change | apart, none, "Gpus::shapes_change",   \
       " has processes wait for shapes in every step, which a graph cannot; leave it or capture "  \
       "out",                                                                                      \
       "Processes would have to agree on the shapes of each step, and record anew where they "     \
       "change.")                                                                                  \
  RULE(captured_worker, not_built, capture | server, none, "a step of a worker",                   \
       " waits on the host for its parameter server, which a graph cannot; leave capture out",     \
       "A graph would have to end where the worker pushes.")                                       \
  /* kernels for parameters on GPUs, which are looked at before a program that trains */           \
  RULE(update_by_kernel, need, own_memory | trains, kernel, "parameters on a GPU",                 \
       " need an optimizer whose update is a kernel; give Pipeline::with a cuda::Enqueued, or "    \
       "use host::Threads",                                                                        \
       "The host does not read them in a step.")                                                   \
  RULE(sum_by_kernel, need, own_memory | trains | two_owners, adds_by_kernel,                      \
       "stages with two owners, or replicas,",                                                     \
       " need a kernel that adds gradients; give Gpus::kernels one, or use a schedule with one "   \
       "owner for each stage, without replicas",                                                   \
       "Gradients are added up where they lie.")                                                   \
  RULE(look_by_kernel, need, own_memory | trains | looks, finds_by_kernel, "Options::non_finite",  \
       " needs kernels that find out whether gradients are finite; give Gpus::kernels those of "   \
       "cuda::parameter_kernels, have your own call GradientScale::find, or let it be "            \
       "NonFinite::ignore",                                                                        \
       "The host does not read gradients.")                                                        \
  RULE(look_before_update, need, own_memory | trains | looks, asks_scale, "Options::non_finite",   \
       " needs an optimizer's kernel that changes nothing unless scale->updates(); have yours "    \
       "ask, with 'static constexpr bool asks_scale = true;' in its Launch, or let it be "         \
       "NonFinite::ignore",                                                                        \
       "The update is enqueued before anybody has looked.")                                        \
  RULE(number_skipped, need, own_memory | trains | skips, begins_by_kernel, "Options::non_finite", \
       " needs a kernel that numbers steps, if it is NonFinite::skip or in several processes; "    \
       "give Gpus::kernels a `begin` that calls GradientScale::correct, or let it be "             \
       "NonFinite::ignore",                                                                        \
       "The host does not know how many of the steps in flight have updated.")                     \
  RULE(number_apart, need, own_memory | trains | looks | apart, begins_by_kernel,                  \
       "Options::non_finite",                                                                      \
       " needs a kernel that numbers steps, if it is NonFinite::skip or in several processes; "    \
       "give Gpus::kernels a `begin` that calls GradientScale::correct, or let it be "             \
       "NonFinite::ignore",                                                                        \
       "The host does not know how many of the steps in flight have updated.")                     \
  RULE(clip_by_kernel, need, own_memory | trains | clips, norm_by_kernel, "Options::clip_norm",    \
       " needs kernels that sum up squares and find the scale; give Gpus::kernels both, or "       \
       "leave clip_norm out",                                                                      \
       "The host does not read gradients.")                                                        \
  /* not refused */                                                                                \
  RULE(shards_of_one_copy, no_effect, shards, shards_states, "AllReduce::shard_optimizer",         \
       " changes nothing on threads",                                                              \
       "Ranks with one memory have one copy of the optimizer's state, of which each updates a "    \
       "part.")                                                                                    \
  RULE(nothing_repeated, no_effect, checks_recompute, recomputes, "Options::check_recompute",      \
       " changes nothing without Options::recompute",                                              \
       "Only a forward that is repeated can be compared with the first; a plan may decide that "   \
       "none is.")                                                                                 \
  RULE(late_looks, no_effect, late, looks, "NonFinite::ignore",                                    \
       " changes nothing for a worker with late layers: its step fails as by NonFinite::fail",     \
       "Predicted weights, and the choice of late layers, would be made of a gradient that is "    \
       "not finite before the server undoes the step.")                                            \
  RULE(library_without_sums, no_effect, by_library, replicas | two_owners,                         \
       "collective::By::library", " changes nothing where each stage is run by one rank",          \
       "Such a rank has no gradients to add up.")                                                  \
  RULE(recorded_on_one_device, no_effect, one_device | records, none, "Options::record",           \
       " changes nothing in a loop on the calling thread", "It has no actions with times.")        \
  RULE(repeated_on_one_device, no_effect, one_device | recomputes, none, "Options::recompute",     \
       " changes nothing in a loop on the calling thread",                                         \
       "It keeps the values of one microbatch.")                                                   \
  RULE(replicas_on_one_device, no_effect, one_device | replicas, none, "Options::replicas",        \
       " changes nothing in a loop on the calling thread", "It is one rank.")                      \
  RULE(replicas_pushed_at_end, no_effect, grouped_pushes | replicas | own_memory, none,            \
       "collective::GroupedPushes", " changes nothing for a stage with several replicas on GPUs",  \
       "Their sum is pushed at the end of the step.")                                              \
  RULE(enqueued_on_host, no_effect, enqueue, runs_ahead, "enqueue",                                \
       " returns when the step is done",                                                           \
       "On threads, in processes and in virtual time the caller, or the threads, run the step.")   \
  RULE(enqueued_worker, no_effect, enqueue | server, none, "enqueue",                              \
       " returns when the step of a worker is done",                                               \
       "The host waits for the parameter server in each step.")                                    \
  RULE(enqueued_stream, no_effect, enqueue | asynchronous, none, "enqueue",                        \
       " returns when a stream is done", "Only steps are enqueued ahead of the device.")           \
  RULE(captured_record, no_effect, capture | records, none, "Trainer::capture",                    \
       " does not replay recorded steps", "A graph has no times of its actions.")                  \
  RULE(enqueued_record, no_effect, enqueue | records, none, "enqueue",                             \
       " returns when a recorded step is done", "The host reads the times of its actions.")        \
  RULE(enqueued_each_pass, no_effect, enqueue | each_pass, none, "enqueue",                        \
       " returns when a step is done whose layers are updated in each pass",                       \
       "Before the step, the host has the weights saved to which a failure goes back.")
