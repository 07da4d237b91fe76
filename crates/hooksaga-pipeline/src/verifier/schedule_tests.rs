//! The schedule against endpoints that hang, fail and prove themselves, by a clock of the test's own.

use super::*;

fn host(name: impl std::fmt::Display) -> Host {
    Host::of(&format!("https://{name}.example/"))
}

/// A schedule with the limits in use, and a clock.
struct Bench {
    schedule: Schedule<String>,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        Self { schedule: Schedule::new(Limits::default()), now: Instant::now() }
    }

    fn offer(&mut self, host: &Host, first: bool, check: impl Into<String>) -> bool {
        self.offer_of("default", host, first, check)
    }

    fn offer_of(&mut self, tenant: &str, host: &Host, first: bool, check: impl Into<String>) -> bool {
        self.schedule.offer(host.clone(), tenant, first, check.into(), self.now)
    }

    fn step(&mut self) -> CheckActions<String> {
        self.schedule.step(self.now)
    }

    /// The names of the checks that start now.
    fn started(&mut self) -> Vec<String> {
        self.step().start.into_iter().map(|(_, check)| check).collect()
    }

    fn pass(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds);
    }

    /// Time passes in small steps; everything that is cut ends, and nothing else does. Returns what started
    /// and when.
    fn run_hanging(&mut self, milliseconds: u64) -> Vec<(String, u64)> {
        let mut started = Vec::new();
        for elapsed in (0..milliseconds).step_by(50) {
            let step = self.step();
            for number in step.cut {
                self.schedule.ended(number, false, self.now);
            }
            started.extend(step.start.into_iter().map(|(_, check)| (check, elapsed)));
            self.check_bounds();
            self.pass(50);
        }
        started
    }

    fn check_bounds(&self) {
        let (schedule, limits) = (&self.schedule, &self.schedule.limits);
        let active = schedule.running.values().filter(|runs| !runs.cut);
        assert!(active.count() <= limits.running);
        let young = schedule.running.values().filter(|runs| self.now < runs.since + limits.youth);
        assert!(young.count() <= limits.young);
        assert!(schedule.running_of.values().all(|count| *count <= limits.running_per_host));
        assert!(schedule.waiting() <= limits.waiting);
        // By host, and by tenant.
        let waiting: usize = schedule.waiting_of.values().sum();
        assert_eq!(waiting, 2 * schedule.waiting());
        let running: usize = schedule.running_of.values().sum();
        assert_eq!(running, schedule.running.len());
    }
}

#[test]
fn a_host_is_its_name_and_port() {
    let same =
        ["https://a.example/x", "https://A.example:443/y?z", "https://a.example./", "https://u@a.example/"];
    assert!(same.iter().all(|url| Host::of(url) == Host::of("https://a.example/")));
    for other in ["http://a.example/", "https://a.example:444/", "https://b.a.example/", "no url"] {
        assert_ne!(Host::of(other), Host::of("https://a.example/"), "{other}");
    }
    assert_eq!(Host::of("http://[::1]:80/"), Host::of("http://[::1]/"));
}

#[test]
fn five_hundred_hosts_that_hang_do_not_keep_a_newcomer_waiting() {
    let mut bench = Bench::new();
    for n in 0..500 {
        assert!(bench.offer(&host(n), true, format!("hangs {n}")));
    }
    for arrives_after in [0, 500, 1500, 3000, 5000] {
        bench.run_hanging(arrives_after);
        let name = format!("good {arrives_after}");
        bench.offer(&host("good"), true, name.clone());
        let started = bench.run_hanging(1050);
        let at = started.iter().find(|(check, _)| *check == name).map(|(_, at)| *at);
        assert!(at.is_some_and(|at| at <= 1000), "{name} started after {at:?}");
    }
}

#[test]
fn every_one_of_five_hundred_starts_before_it_has_waited_too_long() {
    let mut bench = Bench::new();
    for n in 0..500 {
        bench.offer(&host(n), true, format!("{n}"));
    }
    let started = bench.run_hanging(15_000);
    let distinct: HashSet<&String> = started.iter().map(|(check, _)| check).collect();
    assert_eq!((started.len(), distinct.len()), (500, 500));
}

#[test]
fn a_check_that_hangs_has_its_time_unless_others_need_the_slot() {
    let mut bench = Bench::new();
    for n in 0..192 {
        bench.offer(&host(n), true, format!("{n}"));
    }
    assert_eq!(bench.run_hanging(10_000).len(), 192);
    // Nobody waits: nobody is cut, though all are old.
    assert_eq!(bench.schedule.running.len(), 192);
    bench.offer(&host("one more"), true, "one more");
    let step = bench.step();
    assert_eq!((step.cut, step.start.len()), (vec![0], 1));

    // Under a flood without end each still has four seconds, nearly.
    let mut bench = Bench::new();
    let mut begun = HashMap::new();
    for tick in 0..400 {
        for n in 0..bench.schedule.room().min(10) {
            bench.offer(&host(format!("{tick}-{n}")), true, "x");
        }
        let step = bench.step();
        for (number, _) in step.start {
            begun.insert(number, bench.now);
        }
        for number in step.cut {
            let had = bench.now - begun[&number];
            assert!(had >= Duration::from_millis(3900), "{had:?}");
            bench.schedule.ended(number, false, bench.now);
        }
        bench.check_bounds();
        bench.pass(50);
    }
}

#[test]
fn a_host_that_does_not_prove_itself_gets_a_burst_and_then_five_per_second() {
    let mut bench = Bench::new();
    let victim = host("victim");
    let mut sent = Vec::new();
    for tick in 0..200_u64 {
        while bench.offer(&victim, true, "x") {}
        for (number, _) in bench.step().start {
            sent.push(tick * 50);
            // It refuses at once, every time.
            bench.schedule.ended(number, false, bench.now);
        }
        bench.pass(50);
    }
    assert_eq!(sent.iter().filter(|at| **at == 0).count(), 20);
    let in_ten_seconds = sent.len();
    assert!((65..=70).contains(&in_ten_seconds), "{in_ten_seconds}");
    for start in (1000..9000).step_by(500) {
        let within = sent.iter().filter(|at| (start..start + 1000).contains(*at)).count();
        assert!(within <= 6, "{within} challenges in the second from {start} ms");
    }
}

#[test]
fn a_host_that_proves_itself_is_not_slowed_down() {
    let mut bench = Bench::new();
    let good = host("good");
    let mut verified = 0;
    while verified < 1000 {
        while bench.offer(&good, true, "x") {}
        let step = bench.step();
        assert!(!step.start.is_empty(), "after {verified}");
        bench.pass(5);
        for (number, _) in step.start {
            bench.schedule.ended(number, true, bench.now);
            verified += 1;
        }
    }
    assert_eq!(bench.schedule.running.len(), 0);
}

#[test]
fn one_host_that_hangs_holds_a_quarter_at_most_and_others_pass_it_by() {
    let limits = Limits { burst: 1000, ..Limits::default() };
    let mut bench = Bench { schedule: Schedule::new(limits), now: Instant::now() };
    let mut running = 0;
    for _ in 0..60 {
        while bench.offer(&host("hangs"), true, "x") {}
        running += bench.step().start.len();
        bench.check_bounds();
        bench.pass(50);
    }
    assert_eq!(running, 64);
    bench.offer(&host("good"), false, "good");
    assert_eq!(bench.started(), ["good"]);
}

#[test]
fn first_tries_come_before_retries_and_the_newest_and_the_oldest_take_turns() {
    // Six of them for one tenant.
    let limits = Limits { young: 8, ..Limits::default() };
    let mut bench = Bench { schedule: Schedule::new(limits), now: Instant::now() };
    for n in 0..2 {
        bench.offer(&host(format!("r{n}")), false, format!("retry {n}"));
    }
    for n in 0..5 {
        bench.offer(&host(n), true, format!("{n}"));
    }
    assert_eq!(bench.started(), ["4", "0", "3", "1", "2", "retry 0"]);
    bench.pass(1000);
    assert_eq!(bench.started(), ["retry 1"]);
}

#[test]
fn what_waits_too_long_is_forgotten_and_what_is_too_much_is_not_let_in() {
    let mut bench = Bench::new();
    let victim = host("victim");
    let let_in = (0..500).filter(|n| bench.offer(&victim, true, format!("{n}"))).count();
    assert_eq!((let_in, bench.schedule.room()), (256, 1024 - 256));
    assert!(bench.schedule.is_crowded());
    // 20 start at once, and then five per second, until as many run as may: none of them ends.
    let started = bench.run_hanging(15_000);
    assert_eq!(started.len(), 64);
    assert!(!bench.step().waits && !bench.schedule.is_crowded());
    assert_eq!(bench.schedule.room(), 1024);
    assert!(bench.offer(&victim, true, "again"));
}

/// Whatever one tenant asks for, another one's check starts at once: there is a young slot, a slot, and room to wait.
#[test]
fn a_tenant_whose_hosts_hang_delays_nobody_elses_checks() {
    let mut bench = Bench::new();
    let mut flood = 0;
    for second in 0..12 {
        for _ in 0..20 {
            // What the store is asked for: it has any number of the crowd's.
            while bench.schedule.room() > 0 && bench.schedule.full_tenants(32).is_empty() {
                for _ in 0..32 {
                    flood += 1;
                    bench.offer_of("crowd", &host(flood), true, "hangs");
                }
            }
            bench.run_hanging(50);
        }
        assert_eq!(bench.schedule.full_tenants(32), ["crowd"]);
        assert!(bench.schedule.room() >= 256, "room to wait: {}", bench.schedule.room());
        let name = format!("good {second}");
        assert!(bench.offer_of("other", &host(&name), second % 2 == 0, name.clone()));
        let step = bench.step();
        let started: Vec<_> = step.start.iter().filter(|(_, check)| *check == name).collect();
        assert_eq!(started.len(), 1, "in second {second}");
        assert!(step.cut.iter().all(|number| *number < started[0].0));
        bench.schedule.ended(started[0].0, true, bench.now);
        step.cut.into_iter().for_each(|number| bench.schedule.ended(number, false, bench.now));
    }
    let running = bench.schedule.running.values().filter(|runs| !runs.cut).count();
    assert!(running <= 192, "{running}");
}

/// A slow endpoint has its time beside any number of another tenant's that hang: those are cut themselves.
#[test]
fn who_makes_room_is_of_the_tenant_that_needs_it() {
    let mut bench = Bench::new();
    bench.offer_of("other", &host("slow"), true, "slow");
    let number = bench.step().start[0].0;
    let mut cut = Vec::new();
    for tick in 0..190 {
        for n in 0..bench.schedule.room().min(10) {
            bench.offer_of("crowd", &host(format!("{tick}-{n}")), true, "x");
        }
        let step = bench.step();
        step.cut.iter().for_each(|number| bench.schedule.ended(*number, false, bench.now));
        cut.extend(step.cut);
        bench.check_bounds();
        bench.pass(50);
    }
    assert!(cut.len() > 100 && !cut.contains(&number), "{}", cut.len());
}

/// Each tenant leaves a quarter to the next.
#[test]
fn several_tenants_that_hang_leave_room_too() {
    let mut bench = Bench::new();
    for tenant in ["a", "b", "c"] {
        for n in 0..100 {
            bench.offer_of(tenant, &host(format!("{tenant}{n}")), true, tenant);
        }
        let started = bench.started();
        assert!(!started.is_empty() && started.iter().any(|check| check == tenant), "{started:?}");
        bench.check_bounds();
    }
    bench.offer_of("other", &host("good"), true, "good");
    assert!(bench.started().contains(&"good".to_owned()));
}

/// In a process with few descriptors.
#[test]
fn with_few_slots_hosts_that_hang_hold_no_newcomer_up() {
    for slots in [0, 16, 128] {
        let limits = Limits::at_a_time(slots);
        let mut bench = Bench { schedule: Schedule::new(limits), now: Instant::now() };
        for n in 0..500 {
            bench.offer_of("crowd", &host(n), true, "hangs");
        }
        bench.run_hanging(2000);
        bench.offer(&host("good"), true, "good");
        assert!(bench.started().contains(&"good".to_owned()), "with {slots}");
    }
}

#[test]
fn what_is_known_of_hosts_does_not_pile_up() {
    let mut bench = Bench::new();
    for n in 0..1000 {
        bench.offer(&host(n), true, "x");
        for (number, _) in bench.step().start {
            bench.schedule.ended(number, false, bench.now);
        }
        bench.pass(50);
    }
    assert!(bench.schedule.buckets.len() < 10, "{}", bench.schedule.buckets.len());
    assert!(bench.schedule.waiting_of.is_empty() && bench.schedule.running_of.is_empty());
}
