"""For each test of the kit the sentence of the contract that it stands for, word for word.

A failure ends with it. Tests of what no sentence says (a hook's types, what a leak is) have none.
"""

from __future__ import annotations

_SENTENCES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("BackendInfo", "name: as in its entry point.", ("test_the_manifest_says_who_the_backend_is",)),
    ("engine_backend", "Return the manifest. Touches no device and no vendor library; takes "
     "microseconds.", ("test_the_manifest_does_not_change",)),
    ("Capability", "A backend announces these in `BackendInfo.capabilities`; the core asks for "
     "nothing that is not announced.", ("test_announced_capabilities_have_their_hooks",)),
    ("DeviceInfo", "lacks: what the backend announces and cannot do on this device with the "
     "runtime that is installed: the `Capability` and why, in one line.",
     ("test_what_a_device_lacks_is_announced_and_has_a_reason",)),
    ("BackendInfo", "options: the settings it reads from `CompileOptions.options`, each an "
     "`Option` or one line on its values and meaning;",
     ("test_every_option_is_explained", "test_declared_values_of_options_are_taken",
      "test_other_values_of_options_are_refused")),
    ("Devices", "Empty means that none is; then `reason` says why (one line, lower case) and `fix` "
     "gives the command or step that helps.", ("test_devices_are_found_or_a_reason_is_given",)),
    ("engine_diagnose", "Driver, libraries, versions, devices, environment variables; each with "
     "its fix.", ("test_a_failed_check_names_its_fix",)),
    ("hookspecs", "Importing the plugin must be quick and quiet: no vendor library is imported, no "
     "device touched, nothing printed before `engine_devices`, `engine_diagnose`, `engine_load` or "
     "`engine_compile`.",
     ("test_importing_the_plugin_prints_nothing", "test_importing_the_plugin_imports_no_runtime",
      "test_importing_the_plugin_is_quick")),
    ("engine_predict", "Returns one value per `executable.outputs`, in order;",
     ("test_predict_matches_the_closed_form", "test_values_go_in_and_out_in_the_models_order",
      "test_results_have_the_models_names", "test_shapes_that_depend_on_the_data_are_exact",
      "test_both_branches_of_a_condition_run", "test_values_that_are_not_finite_stay_so",
      "test_large_tensors_arrive_whole", "test_a_model_needs_no_batch",
      "test_axes_are_moved_as_the_model_says", "test_a_model_needs_no_inputs",
      "test_outputs_have_types_of_their_own",
      "test_whole_numbers_arrive_to_the_last_bit", "test_booleans_are_booleans",
      "test_a_whole_graph_gives_what_its_parts_give",
      "test_older_operator_sets_keep_their_meaning", "test_neighbouring_integers_are_told_apart",
      "test_nothing_is_less_than_nan_or_equal_to_it", "test_nan_stays_nan",
      "test_sums_of_extreme_products_do_not_saturate", "test_integer_convolutions_do_not_saturate",
      "test_small_integers_wrap", "test_an_index_from_the_end_is_counted_from_there",
      "test_wide_integers_are_moved_to_the_last_bit",
      "test_what_a_model_fills_itself_is_written_in_every_build")),
    ("engine_predict", "inputs: one value per `executable.inputs`, in order, with the declared "
     "dtype, C-contiguous, dims as declared.",
     ("test_numbers_are_computed_in_their_type", "test_tensors_without_elements_are_tensors",
      "test_an_input_that_no_node_reads_keeps_its_place",
      "test_inputs_and_outputs_are_described_in_the_models_order")),
    ("TensorSpec", "A scalar has ().", ("test_a_scalar_stays_a_scalar",)),
    ("CompileOptions", 'precision: the API\'s precision_mode: "enforce_fp32" (true fp32, no faster '
     "approximation)",
     ("test_sums_of_products_are_as_precise_as_float32",
      "test_arithmetic_is_as_precise_as_float32",
      "test_weights_stored_as_int8_are_computed_in_float")),
    ("Arithmetic", "How exactly a model's floats are computed, in words of no device.",
     ("test_results_are_as_exact_as_asked_for",)),
    ("types", "float8, bfloat16, int4 and the like use ml_dtypes' dtypes, strings numpy's object "
     "dtype holding `str`.",
     ("test_bfloat16_arrives_to_the_last_bit_or_is_refused", "test_text_arrives_as_str",
      "test_casts_to_small_types_are_right_or_refused")),
    ("Value", "A tensor on the host or on a device; a list for a sequence; None for an absent "
     "optional.",
     ("test_sequences_are_lists_or_refused", "test_optionals_may_be_absent_or_are_refused")),
    ("Capability", "symbolic dims without recompiling",
     ("test_a_batch_may_be_empty", "test_symbolic_dims_take_any_size",
      "test_shapes_may_change_from_call_to_call", "test_a_range_of_shapes_is_compiled_for")),
    ("engine_predict", "Memory is reused only where a buffer is given and for "
     "`CompileOptions.resident`: everything else returned is new and belongs to the caller.",
     ("test_a_result_never_changes_under_its_owner", "test_results_are_contiguous_and_writable",
      "test_a_result_is_not_the_inputs_memory", "test_two_results_share_no_memory",
      "test_changing_a_result_does_not_change_the_model",
      "test_results_on_the_device_belong_to_the_caller")),
    ("engine_predict", "Not modified; read anew in every call.",
     ("test_inputs_are_not_modified", "test_an_input_changed_in_place_is_seen",
      "test_a_new_array_at_an_old_address_is_seen", "test_one_array_may_be_two_inputs",
      "test_inputs_may_be_on_the_device")),
    ("engine_predict", "Arrays may be read-only.", ("test_inputs_may_be_read_only",)),
    ("engine_predict", "given buffers are returned themselves (`outputs` itself, if every one was "
     "given).",
     ("test_given_buffers_are_filled_and_returned", "test_a_scalar_buffer_is_filled",
      "test_given_device_buffers_are_filled_and_returned",
      "test_preallocated_outputs_are_filled_again_and_again")),
    ("engine_predict", "the very same list object as in the last such call means the same arrays "
     "in the same shapes, so what was bound for it still stands;",
     ("test_the_same_lists_are_read_anew", "test_other_lists_are_bound_anew",
      "test_a_buffer_is_used_in_no_later_call")),
    ("engine_predict", "None to have that one allocated;", ("test_some_buffers_may_be_left_out",)),
    ("engine_predict", "InputError for what only the runtime can know (a data-dependent shape that "
     "does not fit a given buffer)",
     ("test_a_buffer_of_another_size_is_refused_by_name",
      "test_an_input_as_buffer_is_right_or_refused")),
    ("engine_load", "Raises ModelError naming the file and what is wrong in it,",
     ("test_a_truncated_model_is_a_model_error", "test_a_contradictory_model_is_a_model_error")),
    ("engine_compile", "Raises ModelError for a model that cannot be compiled (unsupported nodes "
     "by name),", ("test_an_unknown_operator_is_named",)),
    ("LoadedModel", "Nodes (by index in `source.graph.nodes`) that this backend cannot run, and "
     "why.",
     ("test_unsupported_nodes_are_reported_before_compiling",
      "test_what_is_no_tensor_is_reported_node_by_node")),
    ("NodeGroups", "together: sets of nodes, by index in `source.graph.nodes`, each of which runs "
     "here only as a whole and in one segment;",
     ("test_groups_are_of_nodes_that_run_here", "test_a_model_that_is_cut_by_groups_is_right")),
    ("NodeGroups", "No two overlap.", ("test_a_node_is_in_one_group_at_most",)),
    ("LoadedModel", "a NodeGroups, asked for where nodes of a whole model go to other backends.",
     ("test_groups_are_the_same_in_every_load",)),
    ("ModelSource", "Where `data` is set it is what has been checked, and the backend reads it "
     "instead of `path`, also for a model with external data.",
     ("test_a_model_is_read_from_its_bytes_where_there_are_any",
      "test_a_part_of_a_model_runs_without_the_rest")),
    ("ModelSource", "data: its bytes, or None when it is to be read from `path`",
     ("test_a_model_is_read_from_its_file_where_there_are_no_bytes",)),
    ("ModelSource", "folder: what external data locations are relative to; None where there is "
     "none.", ("test_weights_beside_the_model_are_found",)),
    ("ModelSource", "a backend that uses it in place keeps a reference, for it lives as long as "
     "one is left.", ("test_weights_in_memory_are_found_and_kept_where_they_are_used",)),
    ("CompileOptions", "an unknown key is a ValueError naming it and the nearest known one.",
     ("test_an_unknown_option_is_named", "test_a_misspelt_option_is_told_the_right_one")),
    ("engine_compile", "BackendUnavailable where the device is gone or out of memory, ValueError "
     "for an option.", ("test_a_device_that_is_not_there_is_refused",)),
    ("engine_predict", "ModelError where the model itself fails on this data.",
     ("test_a_model_that_fails_while_it_runs_is_a_model_error",
      "test_an_index_out_of_range_is_an_error",
      "test_a_context_survives_a_failed_predict")),
    ("Executable", "Free everything. All contexts are closed before; closing twice does nothing.",
     ("test_closing_twice_does_nothing", "test_closing_a_context_leaves_the_others",
      "test_executables_know_nothing_of_each_other",
      "test_contexts_leave_no_files_threads_or_memory",
      "test_executables_leave_no_files_threads_or_memory")),
    ("LoadedModel", "Free what reading took. The core calls it once, after compile; may come "
     "again.", ("test_the_executable_outlives_the_loaded_model",)),
    ("hookspecs", "A backend leaves alone what belongs to the process: environment variables, "
     "signal handlers, the working folder, stdout and stderr.",
     ("test_nothing_is_printed", "test_process_wide_settings_stay_as_they_are")),
    ("Executable", "One entry for each node of the source's main graph, in order; why it runs "
     "there.", ("test_placement_has_one_entry_for_each_node",)),
    ("Placement", 'provider: one of `BackendInfo.providers`, or that with ":" and a detail.',
     ("test_placement_names_backend_device_provider_and_reason",)),
    ("Placement", "fused_into: the index of the node whose kernel computes this one;",
     ("test_states_of_nodes_are_possible",)),
    ("DeviceMemory", "Memory of a device at a moment, in bytes; None where the runtime does not "
     "tell.",
     ("test_memory_of_a_device_is_in_bytes",)),
    ("engine_memory", "Read how much memory a device has left now.",
     ("test_memory_that_is_allocated_is_counted",)),
    ("DeviceInfo", "dtypes: the element types of tensors that this device computes with;",
     ("test_declared_element_types_arrive_to_the_last_bit",)),
    ("MemoryReport", "Memory that an executable holds on its device, in bytes; 0 also where it "
     "cannot be known.", ("test_memory_is_reported_in_bytes",)),
    ("ModelSource", "Neither it nor anything made from it may be written to disk, not to a "
     "temporary file or a cache either;", ("test_a_secret_model_leaves_no_file",)),
    ("Threads", "Host threads a model may use, already fitted to this machine; never 0.",
     ("test_a_model_uses_the_threads_it_is_given",)),
    ("hookspecs", "Any thread may call any hook, and several at once; only an execution context, a "
     "communicator and a loaded model are used by one thread at a time.",
     ("test_threads_with_contexts_of_their_own_get_their_own_results",
      "test_contexts_may_be_opened_at_once", "test_threads_share_a_model",
      "test_models_may_be_built_by_several_threads_at_once",
      "test_a_context_may_be_closed_by_another_thread")),
    ("ExecutionContext", "Lent for a call; not always used by the same thread.",
     ("test_a_context_may_change_threads",)),
    ("engine_predict", "Raises DeadlineExceeded (if the backend announces DEADLINES; the context "
     "stays usable),",
     ("test_a_deadline_that_has_passed_stops_a_predict",
      "test_a_deadline_that_is_kept_changes_nothing")),
    ("Capability", "engine_predict stops a running model at deadline_s",
     ("test_a_predict_stops_at_its_deadline",
      "test_a_predict_that_was_stopped_goes_on_nowhere")),
    ("engine_compile", "`options.progress` is called while it works, and `options.cancel` makes it "
     "stop soon with Cancelled, leaving nothing behind.",
     ("test_a_cancelled_compile_does_not_begin", "test_a_compile_is_cancelled_on_its_way",
      "test_a_first_predict_that_compiles_can_be_cancelled")),
    ("engine_predict_async", "done: to be called exactly once for each call that returned,",
     ("test_a_begun_predict_gives_its_values_once",)),
    ("engine_predict_async", "The context is free before it is called.",
     ("test_a_context_is_free_once_the_end_is_told",)),
    ("engine_predict_async", "Raises what engine_predict raises where the predict does not begin; "
     "`done` is not called then.", ("test_a_begun_predict_that_fails_says_so_once",)),
    ("engine_predict", "options: what the user, or who shares the run, says of this predict alone;",
     ("test_options_of_a_predict_are_forgotten_after_it",)),
    ("engine_predict", "Changes no result.", ("test_options_of_a_predict_change_no_result",)),
    ("engine_predict_async", "options: as engine_predict's.",
     ("test_options_of_a_begun_predict_change_no_result",)),
    ("PredictOptions", "can_be_cancelled: False where nobody calls `ExecutionContext.cancel` for "
     "it; `deadline_s` holds all the same.",
     ("test_a_predict_that_nobody_cancels_keeps_its_deadline",
      "test_a_predict_that_says_so_can_be_cancelled")),
    ("Progress", "progress(phase, done, total): steps of the phase that are done; total is None "
     "while unknown.", ("test_progress_only_goes_forward",)),
    ("Executable", "`concurrency`, an int: how many predicts at once are worth having.",
     ("test_the_useful_concurrency_is_a_number",)),
    ("Executable", "the new one works on the same stream and in the same scratch memory.",
     ("test_contexts_beside_each_other_get_their_own_results",
      "test_contexts_beside_each_other_share_their_memory")),
    ("ExecutionContext", "`cancel()`: stop the predict that runs in this context, which then "
     "raises Cancelled soon.",
     ("test_a_predict_is_cancelled_by_another_thread",
      "test_a_cancel_leaves_other_contexts_alone")),
    ("ExecutionContext", "also just before engine_predict is called and before the runtime starts; "
     "it holds for that predict.", ("test_a_cancel_before_the_runtime_starts_holds",)),
    ("ExecutionContext", "`reset()`: let go of the caller's arrays.",
     ("test_a_reset_context_lets_go_of_arrays",)),
    ("engine_load", "They are the same whether `source.compiled` is set or not;",
     ("test_a_compiled_form_gives_the_same_model",)),
    ("CompileOptions", "Nothing there is changed afterwards; the folder may be renamed, and later "
     "removed, while executables made from it are in use.",
     ("test_an_executable_goes_on_when_its_form_is_moved_and_removed",
      "test_a_compiled_form_is_written_once")),
    ("ModelSource", "Where it is of no use after all, raise CompiledFormError: the core loads the "
     "model anew, without it.", ("test_a_damaged_form_is_refused_or_right",)),
    ("CompileOptions", "It stays empty where this model has no compiled form: always for a secret "
     "one,", ("test_a_secret_model_has_no_compiled_form",)),
    ("engine_compiled_key", "Give all that a compiled form depends on beside the model, as text by "
     "name.",
     ("test_a_key_is_text_and_equal_for_equal_options",
      "test_equal_keys_mean_exchangeable_forms")),
    ("engine_compiled_key", "Cheap: it is asked for at every build.", ("test_a_key_is_cheap",)),
    ("engine_copy", "Copy a tensor between the host and a device of this backend, or between its "
     "devices.",
     ("test_a_copy_to_the_device_and_back_changes_nothing",
      "test_a_part_of_a_buffer_can_be_copied")),
    ("engine_buffer", "True for host memory that the device reaches without a further copy "
     "(page-locked): returns an array.", ("test_host_memory_for_the_device_is_an_array",)),
    ("engine_buffer", "Either is freed when nothing refers to it any more, in whatever thread that "
     "is.", ("test_memory_is_freed_with_its_last_owner",)),
    ("DeviceBuffer", "strides: how many elements lie from one index of an axis to the next, for "
     "each axis;",
     ("test_a_strided_buffer_is_copied_element_by_element",
      "test_predict_reads_an_input_by_its_strides",
      "test_strides_count_elements_of_any_size",
      "test_results_of_strided_inputs_may_stay_on_the_device")),
    ("DeviceBuffer", "offset_bytes: the first element is at pointer + offset_bytes, also where "
     "`strides` is None.",
     ("test_a_strided_buffer_is_copied_element_by_element",
      "test_predict_reads_an_input_by_its_strides")),
    ("engine_copy",
     "No two elements of a target are one place in memory, and what lies between them stays as it "
     "is.",
     ("test_a_copy_into_a_strided_buffer_leaves_what_is_between",)),
    ("engine_predict", "With DEVICE_BUFFERS also DeviceBuffers of the executable's device, packed "
     "unless STRIDED_BUFFERS is announced:",
     ("test_inputs_on_host_and_device_may_be_mixed",)),
    ("engine_predict", "or that Device, to have it allocated there",
     ("test_outputs_are_allocated_on_the_device_that_is_named",)),
    ("CompileOptions", "resident: outputs that stay on the device: engine_predict gives them as "
     "DeviceBuffers of the context's own,", ("test_resident_outputs_stay_on_the_device",
      "test_a_resident_output_costs_no_more_than_one_on_the_host")),
    ("DeviceBuffer", "whoever reads orders after it (engine_order).",
     ("test_a_chain_on_the_device_needs_no_host",
      "test_a_queued_copy_comes_after_what_it_copies")),
    ("engine_order", "Make what is queued on stream `later` from now on wait for what is queued on "
     "`earlier` now.", ("test_a_stream_waits_for_another",)),
    ("engine_order", "later: None makes the calling thread wait instead.",
     ("test_what_was_waited_for_is_complete",)),
    ("KernelTime", "Time that a kernel took in one predict.",
     ("test_each_predict_has_the_times_of_its_kernels",)),
    ("KernelTime", "nodes: the nodes of the source's main graph that it computes, by index:",
     ("test_kernels_name_the_nodes_that_they_compute",)),
    ("CompileOptions", "An empty folder for the files that the runtime writes meanwhile,",
     ("test_files_of_a_measurement_are_where_they_were_asked_for",)),
    ("Executable", "Results are those of a predict that nothing was prepared for, to the bit.",
     ("test_what_is_prepared_gives_the_same_bits",)),
    ("Executable", "progress, cancel and errors: as of engine_compile.",
     ("test_preparing_reports_progress_and_is_cancelled",
      "test_shapes_that_cannot_be_are_not_prepared")),
    ("engine_update_weights", "Atomic: a predict in any context sees all of them or none; on an "
     "error nothing changed,",
     ("test_updated_weights_are_used_by_every_context",
      "test_an_update_that_fails_changes_nothing", "test_a_predict_sees_all_of_an_update_or_none")),
    ("engine_update_weights", "Exchange weights between two predicts, in place.",
     ("test_an_update_changes_no_other_executable_of_the_model",)),
    ("engine_update_weights", "additive: add to the weight as loaded instead of replacing it.",
     ("test_an_additive_update_adds_to_the_weights_as_loaded",)),
    ("engine_update_weights", "Not kept after the call.", ("test_new_weights_are_copied",)),
    ("CompileOptions", "devices: those that the executable runs on together, `device` first, in "
     "the user's order;",
     ("test_nodes_are_placed_on_the_devices_that_were_given",
      "test_executables_on_other_devices_go_on_beside_each_other")),
    ("CompileOptions", "results are those of one device, as exactly.",
     ("test_several_devices_give_the_results_of_one",
      "test_samples_that_meet_in_a_model_meet_on_several_devices")),
    ("Executable", "`memory_by_device()`, where SEVERAL_DEVICES is announced: a MemoryReport for "
     "each device that the executable runs on,", ("test_memory_is_told_for_each_device",)),
    ("engine_share_weights", "Lend an executable's weights to other compiles of the same model on "
     "the same device.",
     ("test_what_is_lent_is_described", "test_borrowed_weights_give_the_lenders_bits",
      "test_another_process_borrows_weights", "test_a_borrower_has_no_weights_of_its_own")),
    ("engine_share_weights", "`owner.close()` is called when the lender's model is closed.",
     ("test_a_lender_that_is_closed_leaves_borrowers_of_its_process_right",
      "test_a_loan_that_has_ended_is_refused")),
    ("CompileOptions", "other executables of this process may have weights in common, and equal "
     "ones are to be in memory once:",
     ("test_models_of_a_group_have_equal_weights_once",
      "test_a_model_of_a_group_that_is_closed_leaves_the_others_right")),
    ("Executable", "The core never runs two such at once, and closes the one that it names last.",
     ("test_resident_outputs_outlast_a_predict_beside_them",
      "test_a_shared_workspace_is_freed_with_its_contexts")),
    ("hookspecs", "Every rank makes the same calls in the same order.",
     ("test_collectives_match_numpy", "test_composed_or_own_collectives_match_numpy",
      "test_two_groups_do_not_mix")),
    ("engine_allreduce", "Reduce `send` over the ranks into `receive`, with the same bits on every "
     "rank.", ("test_every_rank_gets_the_same_bits",)),
    ("hookspecs", "`stream` is where the work is queued, after what is there and after the "
     "buffers' own streams; the call returns at once.",
     ("test_a_queued_collective_comes_in_its_streams_order",
      "test_segments_and_queued_collectives_need_one_wait")),
    ("hookspecs", "A queued collective that cannot end (`deadline_s` has come, a rank is gone, the "
     "group was aborted) lets go of the stream soon:",
     ("test_a_queued_collective_that_cannot_end_lets_go_of_its_stream",)),
    ("Communicator", "Make every collective of this group that runs or comes later fail here, "
     "soon.", ("test_an_abort_ends_a_collective_that_waits",)),
    ("hookspecs", "CommunicatorError naming the ranks that did not arrive by `deadline_s`",
     ("test_a_rank_that_does_not_come_to_a_collective_is_named",)),
    ("engine_communicator", "Raises CommunicatorError naming the ranks that are missing after "
     "`options.timeout_s`.", ("test_a_rank_that_does_not_join_is_named",)),
)  # fmt: skip

DUTIES = {test: (where, text) for where, text, tests in _SENTENCES for test in tests}
"""By test: where the contract says it, and the sentence."""

NEVER_A_GAP = frozenset(
    {
        "test_predict_matches_the_closed_form",
        "test_values_go_in_and_out_in_the_models_order",
        "test_a_result_never_changes_under_its_owner",
        "test_inputs_are_not_modified",
        "test_an_input_changed_in_place_is_seen",
        "test_a_new_array_at_an_old_address_is_seen",
        "test_threads_with_contexts_of_their_own_get_their_own_results",
        "test_a_secret_model_leaves_no_file",
        "test_a_whole_graph_gives_what_its_parts_give",
    }
)
"""Tests that no backend may fail: what then goes wrong, goes wrong in silence."""
