//! The list of all cases.

/// Creates one test per case. `$fresh` is the absolute path (`crate::…`) of an
/// `async fn() -> impl TestDatabase` that creates a fresh, empty, migrated database. The calling crate needs
/// tokio with its test macro.
#[macro_export]
macro_rules! conformance_suite {
    ($fresh:path) => {
        $crate::conformance_cases! { conformance, [$crate], $fresh;
            ingest {
                an_event_is_appended_and_queued_for_routing,
                an_empty_batch_is_nothing,
                the_same_content_again_returns_the_original,
                a_duplicate_of_a_routed_event_is_not_queued_again,
                other_content_under_the_same_external_id_is_a_conflict,
                external_ids_differ_by_case,
                events_without_an_external_id_never_conflict,
                an_external_id_twice_in_a_batch_is_created_once,
                results_come_in_order_and_a_conflict_leaves_its_neighbours_alone,
                a_thousand_events_go_into_one_batch,
                many_writers_of_one_external_id_create_one_event,
                events_that_commit_out_of_order_are_all_routed_once_while_routers_run,
            }
            routing {
                a_saga_is_born_pending_and_due_at_once,
                every_matching_subscription_gets_a_saga_of_its_own,
                only_active_and_verified_subscriptions_get_sagas,
                the_event_type_matches_exactly,
                an_event_that_nobody_wants_leaves_the_queue,
                routing_an_event_again_makes_no_second_saga,
                routing_again_fills_in_only_what_is_missing,
                a_batch_is_limited_and_returned_in_the_order_of_event_ids,
                two_routers_at_once_make_each_saga_once,
                the_limit_is_the_subscriptions_or_else_the_default,
                a_changed_limit_affects_later_sagas_only,
                a_change_of_a_subscription_is_seen_by_the_next_batch,
            }
            topics {
                a_topic_is_a_type_a_prefix_or_everything,
                several_topics_that_match_make_one_saga,
                a_changed_list_of_topics_is_routed_by_at_once,
                the_routing_index_is_in_step_with_the_subscriptions,
                fifty_topics_of_a_thousand_characters_fit,
            }
            route_steps {
                an_event_with_many_subscribers_is_routed_in_steps,
                events_behind_the_limit_are_not_touched,
                small_events_are_let_past_a_crowd,
                small_events_share_the_room_of_a_pass_in_order,
                a_turn_routes_the_listed_events_in_order,
                the_queue_is_listed_in_order_behind_an_event,
                what_another_router_routes_is_passed_over,
                a_limit_that_is_just_enough_completes_the_event_soon,
                paused_and_unverified_subscribers_count_as_considered,
                several_topics_are_merged_across_steps,
                a_router_that_dies_between_steps_leaves_nobody_out,
                routing_a_step_again_makes_no_second_saga,
                a_subscription_created_meanwhile_gets_the_event_once_or_not_at_all,
                two_routers_of_one_event_serve_each_subscriber_once,
                how_far_routing_came_only_grows,
            }
            clock {
                a_saga_that_lies_too_far_ahead_is_due_under_the_key_it_has,
                a_first_attempt_is_never_planned_so_it_is_due_when_it_lies_minutes_ahead,
                a_stranded_saga_of_a_deleted_subscription_comes_to_its_end,
                a_stranded_saga_of_a_paused_subscription_waits,
                a_lease_that_ends_too_late_has_run_out,
                a_not_before_that_is_too_late_has_passed_and_parked_jobs_stay,
                a_check_that_lies_too_far_ahead_is_due,
                a_subscription_that_would_catch_up_much_too_late_catches_up_now,
            }
            compatibility {
                a_newer_schema_that_says_so_leaves_this_program_ready,
            }
            admission {
                a_look_at_who_waits_is_bounded_and_resumes,
                who_has_nothing_due_does_not_wait,
                one_with_a_long_backlog_is_one_hop,
                jobs_are_claimed_in_the_order_of_their_admission,
                the_first_of_a_backlog_are_admitted_and_the_rest_waits,
                a_pass_that_died_counts_against_the_next_allotment,
                the_load_is_that_of_living_workers,
                workers_that_are_long_gone_are_forgotten,
                a_retry_is_admitted_behind_what_was_admitted_before,
            }
            parking {
                a_claim_stops_before_its_payloads_grow_too_large,
                what_a_claim_leaves_is_not_leased,
                a_claim_passes_over_the_subscriptions_it_is_told_to,
                a_parked_job_is_never_claimed,
                a_parked_job_is_not_open_work,
                a_parked_job_goes_on_when_its_subscription_does,
                a_job_whose_url_is_not_verified_stays_parked,
                a_job_whose_subscription_has_resumed_is_not_parked,
                only_the_holder_can_park_and_only_once,
                many_that_stay_parked_are_in_nobodys_way,
            }
            requeue_steps {
                a_step_looks_at_no_more_letters_than_it_may,
                a_step_requeues_no_more_letters_than_it_may,
                a_step_that_finds_nothing_resumes_behind_what_it_saw,
                a_dry_run_counts_what_a_run_would_do,
                skipped_letters_do_not_count_as_requeued,
                a_tenants_step_passes_no_letter_of_another_tenant,
            }
            redrives {
                old_events_are_sent_to_a_new_subscription_once,
                a_redrive_takes_the_events_of_its_time,
                a_redrive_shows_how_far_it_came_among_foreign_events,
                what_comes_later_is_not_part_of_a_redrive,
                dead_letters_that_match_are_sent_again_once,
                a_tenants_redrive_takes_blocked_addresses_for_unknown_names,
                two_redrivers_at_once_make_each_saga_once,
                a_redrive_beside_the_router_makes_each_saga_once,
                a_cancelled_redrive_does_nothing_more,
                a_redrive_that_cannot_go_on_lets_others_go_first,
                a_redrive_fails_when_its_subscription_is_paused,
                only_so_many_redrives_run_at_a_time,
                starts_at_the_same_moment_exceed_no_limit,
                a_redrive_stays_within_its_tenant,
                a_redrive_that_has_ended_never_changes,
            }
            catching_up {
                events_before_the_verification_are_delivered_after_it,
                a_changed_url_catches_up_when_it_is_verified,
                a_verification_that_is_lost_again_loses_no_event,
                the_verification_and_its_queue_are_one_transaction,
                catching_up_goes_back_no_further_than_it_may,
                catching_up_waits_while_the_subscription_is_paused,
                catching_up_goes_on_at_once_however_a_resume_meets_a_step,
                an_event_that_waited_while_the_url_changed_is_caught_up_with,
                many_that_are_not_verified_catch_up_with_an_event_that_waited,
                an_event_that_waited_too_long_is_not_caught_up_with,
                one_that_cannot_catch_up_lets_others_go_first,
                a_subscription_that_is_deleted_does_not_catch_up,
                two_that_catch_up_at_once_make_each_saga_once,
            }
            unmatched {
                an_event_says_whom_it_missed_and_why,
                an_event_that_missed_nobody_leaves_no_row,
                whom_an_event_missed_adds_up_over_the_steps_of_its_routing,
                an_event_is_unwanted_only_if_nobody_gets_it,
            }
            tenants {
                events_reach_subscriptions_of_their_own_tenant_only,
                an_external_id_is_unique_within_its_tenant,
                a_subscription_is_unique_within_its_tenant,
                everything_says_whose_it_is,
                a_foreign_subscription_does_not_exist,
                foreign_events_deliveries_and_letters_do_not_exist,
                a_requeue_of_many_stays_within_the_tenant,
                lists_show_the_tenants_own_rows_only,
                statistics_count_the_tenants_own_only,
                a_tenants_name_is_never_left_out,
            }
            scheduling {
                a_due_saga_gets_a_job_and_is_itself_not_changed,
                a_pass_that_died_before_the_move_is_repeated_without_a_second_job,
                the_move_changes_the_status_and_nothing_else,
                the_workers_hear_of_the_jobs_before_the_move,
                the_move_needs_the_attempt_that_was_read,
                a_finished_saga_is_not_reopened_by_a_late_move,
                a_dead_saga_is_neither_scheduled_nor_reopened,
                a_saga_is_not_scheduled_before_it_is_due,
                a_retry_is_scheduled_when_it_is_due_and_not_before,
                a_saga_at_its_limit_gets_no_job,
                a_subscription_gets_no_more_jobs_than_it_is_allotted,
                a_job_is_open_until_its_result_is_applied,
                the_oldest_of_a_subscription_go_first,
                work_of_a_paused_or_unverified_subscription_waits_unchanged,
                an_in_progress_saga_gets_no_second_job,
                two_orchestrators_at_once_make_one_job_per_saga,
            }
            leases {
                a_claim_carries_all_that_an_attempt_needs,
                a_claimed_job_is_not_claimed_again,
                a_job_without_its_event_keeps_nothing_else_from_being_claimed,
                attempts_count_from_one,
                a_claim_takes_no_more_than_its_limit_and_the_earliest_first,
                jobs_of_one_claim_share_their_subscriptions_target,
                two_claimers_never_hold_the_same_job,
                a_target_that_may_not_be_called_is_marked,
                secrets_come_newest_first_and_expired_ones_not_at_all,
                a_job_handed_back_is_not_claimed_before_its_time,
                only_the_holder_can_hand_back_and_only_once,
                the_cleaner_frees_expired_leases_and_counts_them,
                the_cleaner_touches_nothing_but_leased_jobs,
                the_cleaner_keeps_to_its_limit,
                two_cleaners_at_once_reset_each_lease_once,
                after_a_reset_the_old_holder_can_change_nothing,
                an_expired_lease_that_nobody_reset_can_still_report,
                the_workers_know_the_keys_that_sealed_their_secrets,
            }
            attempts {
                an_attempt_says_when_it_was_sent_and_where,
                an_attempt_that_was_not_sent_has_neither_start_nor_url,
                the_time_that_an_endpoint_asked_for_reaches_the_decision,
                a_retry_is_not_before_the_time_that_the_endpoint_asked_for,
            }
            caretaker {
                failures_are_counted_until_a_success,
                what_was_not_sent_says_nothing_about_its_endpoint,
                a_result_applied_again_is_counted_once,
                an_endpoint_that_is_gone_is_disabled_once_and_announced_once,
                an_endpoint_that_is_gone_is_disabled_while_it_is_paused,
                the_count_of_failures_has_an_end,
                what_another_url_said_disables_nobody,
                a_run_that_is_over_disables_nobody,
                a_run_is_noted_once_and_disabled_once,
                a_run_that_nobody_was_told_of_is_announced_with_its_end,
                a_look_at_the_failing_is_bounded_and_resumes,
                a_verified_subscription_is_announced_once,
                the_url_that_is_announced_is_the_verified_one,
                nothing_is_announced_about_the_reserved_tenant,
            }
            health {
                a_subscription_shows_its_last_day,
                every_length_of_an_attempt_is_counted_in_its_range,
                what_waits_is_counted_until_it_is_being_sent,
                a_count_of_what_waits_ends_at_its_limit,
                the_last_failure_is_shown_with_what_the_endpoint_returned,
                the_health_of_anothers_subscription_is_not_shown,
                endpoints_that_fail_are_known_to_a_process_that_starts,
                endpoints_that_fail_are_listed_whatever_else_waits,
                of_many_that_fail_both_ends_are_listed,
            }
            rate_limits {
                no_more_jobs_are_created_than_the_limit_lets_through,
                who_has_no_limit_is_not_held_back,
                little_that_waits_is_not_called_limited,
                a_bucket_that_lies_far_ahead_is_an_empty_one,
                two_processes_together_keep_the_limit,
                starts_are_counted_across_processes,
            starts_of_many_subscriptions_are_counted_at_once,
                starts_are_counted_for_their_moments,
                the_clock_of_a_start_lies_between_question_and_answer,
            }
            delivery_items {
                a_delivery_shows_its_event_and_where_it_goes,
                a_delivery_shows_what_was_answered_last,
                what_is_read_by_its_ids_is_the_tenants_own_and_still_there,
            }
            resend {
                a_completed_delivery_is_sent_again_as_a_new_saga,
                a_dead_delivery_is_sent_again_as_a_new_saga,
                a_resend_and_a_requeue_are_the_same_thing,
                a_pending_delivery_is_not_sent_again,
                a_delivery_in_progress_is_not_sent_again,
                a_delivery_that_waits_for_a_retry_is_not_sent_again,
                a_resend_needs_an_active_and_verified_subscription,
                a_resend_without_a_limit_of_the_subscriptions_takes_the_default,
                another_tenants_delivery_is_not_found,
                many_resends_and_requeues_at_once_make_one_saga,
            }
            results {
                a_success_is_stored_and_queued,
                a_failure_is_stored_with_what_was_answered,
                a_failure_without_an_answer_has_no_status,
                an_excerpt_that_does_not_fit_is_cut,
                a_report_without_the_lease_changes_nothing_and_queues_nothing,
                a_report_twice_counts_once,
                of_several_reports_of_a_job_in_one_batch_the_holders_counts,
                a_batch_of_reports_answers_the_jobs_that_changed,
                a_success_completes_the_saga,
                a_failure_waits_for_exactly_the_time_that_was_decided,
                the_decision_sees_the_saga_the_job_and_the_databases_now,
                a_decision_of_no_change_changes_nothing,
                the_failure_that_reaches_the_limit_ends_the_saga,
                a_limit_of_one_ends_with_the_first_failure,
                a_success_keeps_the_code_of_the_last_failure,
                a_worker_faster_than_the_move_loses_nothing,
                a_result_queued_again_is_a_no_op,
                a_dead_sagas_result_queued_again_queues_no_second_letter,
                a_job_that_is_not_finished_is_not_applied,
                a_pass_applies_no_more_than_its_limit,
                two_orchestrators_at_once_apply_each_result_once,
            }
            dead_letters {
                a_dead_saga_gets_a_letter_with_its_payload,
                a_saga_is_buried_once,
                a_pass_buries_no_more_than_its_limit,
                two_buriers_at_once_store_each_letter_once,
                a_requeue_makes_a_new_saga_of_the_next_generation,
                a_requeue_without_a_limit_of_the_subscriptions_takes_the_default,
                a_requeue_twice_is_one,
                generations_follow_one_another,
                a_requeue_needs_an_active_and_verified_subscription,
                a_requeue_of_an_unknown_letter_is_not_found,
                two_operators_at_once_make_one_saga,
                many_are_requeued_by_filter,
                a_requeue_of_many_ignores_the_requeued_filter,
                the_limit_counts_what_is_requeued_and_not_what_is_skipped,
                two_operators_of_many_at_once_requeue_each_letter_once,
                an_open_saga_has_no_letter,
            }
            subscriptions {
                a_new_subscription_wants_verification,
                an_inactive_subscription_can_be_created,
                the_same_type_and_url_again_is_no_second_subscription,
                subscriptions_differ_by_type_and_url_to_the_letter,
                many_creators_of_one_subscription_make_one,
                each_field_can_be_changed_by_itself,
                a_patch_that_changes_nothing_leaves_the_row_alone,
                an_update_to_anothers_type_and_url_is_refused,
                an_unknown_subscription_is_not_found,
                activating_clears_why_it_was_disabled_and_pausing_keeps_it,
                a_new_url_has_to_prove_itself,
                a_late_verifier_cannot_verify_the_new_url,
                asking_for_verification_starts_a_new_round,
                older_secrets_stay_valid_for_the_overlap,
                a_sixth_secret_drops_the_oldest,
                the_keys_that_sealed_the_secrets_are_known,
                the_key_of_an_expired_secret_is_of_no_interest,
            }
            verification {
                a_first_check_is_due_at_once,
                a_held_check_is_not_taken_twice,
                a_check_whose_holder_died_is_taken_over,
                a_success_verifies_the_url_and_ends_the_round,
                a_failed_try_is_repeated_after_its_delay,
                another_url_begins_without_the_former_ones_result,
                a_round_that_is_given_up_rests_until_it_is_asked_for_again,
                a_new_round_does_not_wait_for_the_old_ones_delay,
                a_failed_reverification_does_not_unverify,
                an_outcome_needs_its_own_url_round_and_attempt,
                inactive_subscriptions_are_checked_too,
                a_pass_takes_no_more_checks_than_its_limit,
                tenants_take_turns_in_their_checks,
                checks_that_wait_for_their_time_hide_nobody_elses,
                two_verifiers_at_once_never_take_the_same_check,
            }
            slow_lists {
                lists_without_matches_delay_nobody,
            }
            audit {
                what_was_recorded_is_listed_newest_first,
                records_of_some_times_are_listed_by_pages,
                no_record_is_ever_changed_or_deleted,
            }
            deletion {
                a_deleted_subscription_is_not_found,
                its_place_is_free_and_taken_again,
                a_deleted_subscription_never_changes_again,
                its_due_deliveries_end_without_being_sent,
                a_paused_ones_deliveries_end_too,
                a_job_that_is_parked_after_the_deletion_can_be_claimed,
                a_retry_of_a_deleted_one_ends_when_it_is_due,
                nothing_is_sent_again_to_a_deleted_one,
                verification_of_a_deleted_one_stops,
                what_was_counted_of_a_deleted_one_is_removed,
            }
            endpoint_care {
                headers_are_listed_by_name_and_read_with_deliveries_and_checks,
                headers_are_replaced_and_removed_as_a_whole,
                headers_do_not_follow_to_another_origin,
                a_trusted_endpoint_is_verified_with_the_name_of_who_vouched,
                nobody_vouches_for_the_next_url,
                a_test_event_goes_to_its_subscription_alone,
                a_test_event_needs_an_active_and_verified_subscription_of_its_tenant,
            }
            keys {
                a_key_is_found_by_its_hash,
                keys_are_listed_oldest_first_revoked_ones_too,
                keys_are_paged_newest_first,
                keys_are_viewed_apart_from_portal_sessions_and_what_has_ended,
                the_api_creates_only_keys_with_a_tenant_and_an_end,
                a_revoked_key_is_not_found,
                revoking_again_changes_nothing,
                a_revoked_key_stays_revoked,
                one_hash_is_one_key,
                scopes_are_stored_as_a_list_of_names,
                a_key_may_be_bound_to_a_tenant,
                a_key_expires_by_the_databases_clock,
                the_use_of_a_key_is_noted,
            }
            rewrapping {
                everything_is_sealed_with_the_new_key_and_again_is_nothing,
            }
            letter_heads {
                letters_are_the_same_by_whatever_they_are_listed,
                dead_deliveries_are_the_same_by_whatever_they_are_listed,
            }
            list_index {
                lists_are_the_same_however_much_of_them_is_indexed,
                rows_far_apart_are_listed_the_same,
                what_is_young_is_indexed_later,
                blocks_that_hold_nothing_are_forgotten_and_no_others,
                another_tenants_subscription_lists_nothing,
            }
            reading {
                events_are_listed_by_each_filter,
                an_event_shows_its_payload_and_whether_it_is_routed,
                subscriptions_are_listed_by_each_filter,
                deliveries_are_listed_by_each_filter,
                an_open_delivery_is_listed_by_its_status_alone,
                a_dead_delivery_is_listed_before_its_letter_is_written_and_after,
                a_delivery_shows_its_saga_and_its_attempts,
                open_deliveries_of_a_paused_or_unverified_subscription_are_held,
                a_finished_delivery_is_not_held,
                dead_letters_are_listed_by_each_filter,
                a_dead_letter_shows_its_payload,
                pages_are_complete_and_repeat_nothing_while_rows_are_added,
                an_empty_database_shows_empty_lists_and_is_ready,
            }
            statistics {
                nothing_waits_in_an_empty_database,
                gauges_show_how_much_waits_where,
                gauges_show_results_and_letters_that_wait,
                what_is_held_or_not_due_makes_no_due_age,
                counts_add_up_per_minute_and_per_subscription,
                counts_that_are_too_old_are_not_shown,
                the_inventory_counts_subscriptions_by_state_and_open_letters,
            }
            payloads {
                keys_keep_their_order_and_their_duplicates,
                whitespace_is_kept,
                numbers_are_kept_as_they_were_written,
                escapes_are_kept,
                characters_beyond_the_basic_plane_are_kept,
                deep_nesting_is_kept,
                scalars_are_payloads_too,
                a_mebibyte_is_kept,
            }
            times {
                an_attempts_time_is_the_same_microsecond_everywhere,
                odd_microseconds_and_the_latest_time_are_stored_exactly,
                a_lease_ends_exactly_when_it_was_to_end,
                time_never_runs_backwards_between_calls,
            }
            guards {
                an_event_never_changes,
                an_event_without_its_due_form_is_refused,
                a_dead_letter_never_changes,
                no_table_can_be_emptied_at_once,
                nobody_verifies_a_subscription_by_hand,
                a_subscription_without_its_due_form_is_refused,
                a_queue_holds_an_id_once,
            }
            transitions {
                a_final_saga_changes_in_no_column,
                a_saga_takes_no_step_that_is_not_legal,
                an_open_saga_keeps_its_identity_and_its_attempt,
                a_saga_is_never_deleted,
                a_saga_is_born_pending_and_once_per_generation,
                a_finished_job_changes_in_no_column,
                a_job_takes_no_step_that_is_not_legal,
                an_active_job_keeps_its_identity,
                a_job_is_never_deleted,
                a_saga_has_one_active_job_and_one_job_per_attempt,
                a_jobs_columns_fit_its_status,
            }
            denials {
                each_role_reads_its_columns_and_no_others,
                each_role_inserts_into_its_tables_and_no_others,
                each_role_updates_its_columns_and_no_others,
                each_role_deletes_from_its_queue_and_nowhere_else,
                a_role_is_denied_on_rows_that_exist,
                no_role_empties_or_changes_the_schema,
                the_admin_cannot_create_a_verified_subscription,
            }
            retention {
                old_and_final_history_goes_with_all_that_belongs_to_it,
                what_is_open_young_or_waits_stays,
                what_stays_holds_up_nothing_behind_it,
                the_schema_lets_nothing_go_that_is_not_finished,
                the_schema_keeps_what_a_dead_letter_needs,
                an_external_id_is_remembered_as_long_as_its_event,
                no_id_is_given_out_again,
                an_event_with_many_deliveries_goes_in_bounded_steps,
                what_is_being_removed_is_not_sent_again,
                what_is_young_open_or_changed_goes_in_no_step,
                two_janitors_at_once_remove_each_event_once,
                what_is_sent_again_meanwhile_stays,
                an_event_is_never_sent_again_and_removed_at_once,
                what_is_archived_is_all_that_there_is,
            }
            old_records {
                old_records_go_and_young_ones_stay,
                keys_go_a_while_after_they_expired_and_no_others,
                counts_of_minutes_become_counts_of_hours,
                statistics_are_the_same_however_much_is_summed_up,
            }
            wakeups {
                a_signal_reaches_a_listener_in_another_process,
            }
            contention {
                everything_at_once_keeps_every_invariant_and_ends,
            }
            plans {
                no_hot_statement_scans_a_full_table,
                an_event_for_thousands_is_routed_in_bounded_steps,
                a_backlog_that_cannot_run_is_not_visited,
            }
        }
    };
}
