"""Ways to break the privacy layer, each with the tests that must notice.

A mutation is an exact piece of text, which must occur once in its file, and what takes its place. When the text is
gone because the code has changed, the mutation has to follow it: the script says so and fails.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """Attributes:

    file: below src/fedbnn.
    tests: files, or names of tests, of which at least one must fail.

    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


GATE = "privacy/release_gate.py"
LEDGER = "privacy/ledger.py"
SUMS = "privacy/sums.py"
HEAD = "privacy/head.py"
ACCOUNT = "privacy/account.py"
DP_FEDAVG = "methods/dp_fedavg.py"
NOISY_SUMS = "methods/noisy_sums.py"

AUDIT = "tests/audit/test_audit.py"
OF_LEDGER = "tests/privacy/test_ledger.py"
OF_ACCOUNT = "tests/privacy/test_account.py"
OF_CAPS = "tests/deployment/test_caps.py"
OF_GATE = "tests/privacy/test_release_gate.py"
OF_SUMS = "tests/privacy/test_sums.py"
OF_HEAD = "tests/privacy/test_head.py"
OF_DP_FEDAVG = "tests/methods/test_dp_fedavg.py"
OF_DP_FEDSGD = "tests/methods/test_dp_fedsgd.py"
OF_DP_SCAFFOLD = "tests/methods/test_dp_scaffold.py"
OF_PATE = "tests/methods/test_pate.py"
OF_PLAN = "tests/privacy/test_plan.py"
OF_ACCOUNTANT = "tests/privacy/test_accountant.py"
OF_PROTOCOL = "tests/privacy/secure/test_protocol.py"
OF_SHARES = "tests/privacy/secure/test_noise_shares.py"
OF_AGGREGATION = "tests/methods/mechanisms/test_aggregation.py"
OF_OUTPUTS = f"{AUDIT}::test_logits_in_place_of_probabilities_are_caught"


def _noise(factor: float) -> Mutation:
    old = "with_noise(total(), sd, noise).numpy().tobytes()"
    return Mutation(f"noise x {factor}", GATE, old, old.replace("sd", f"{factor} * sd"), (OF_GATE,))


MUTATIONS = (
    _noise(0.5),
    _noise(0.7),
    _noise(0.8),
    Mutation(
        "sensitivity halved",
        HEAD,
        "return math.hypot(self.clip, self.count_weight)",
        "return math.hypot(self.clip, self.count_weight) / 2",
        (OF_HEAD,),
    ),
    Mutation(
        "the count has no part in the sensitivity",
        HEAD,
        "return math.hypot(self.clip, self.count_weight)",
        "return self.clip",
        (OF_HEAD,),
    ),
    Mutation(
        "sums are rounded, not truncated",
        SUMS,
        "return (rows.double() / UNIT).trunc()",
        "return (rows.double() / UNIT).round()",
        (OF_SUMS,),
    ),
    Mutation(
        "clipping of DP-SGD off",
        "privacy/clipping.py",
        "factor = min(1.0, most / norm) / UNIT",
        "factor = 1.0 / UNIT",
        ("tests/privacy/test_clipping.py",),
    ),
    Mutation(
        "ledger not charged",
        LEDGER,
        '                self._append("charge", **new.to_row())\n',
        "                self.charges[release_id] = new\n",
        (OF_LEDGER,),
    ),
    Mutation(
        "budget not checked",
        LEDGER,
        "if (before + cost).fits(limit.budget):",
        "if True:",
        (OF_LEDGER,),
    ),
    Mutation(
        "other ledgers of the site do not count",
        "privacy/account.py",
        "limits = [Limit(self.cap or self.budget, total(one.cost() for one in others))]",
        "limits = [Limit(self.cap or self.budget, total(()))]",
        ("tests/privacy/test_account.py", OF_GATE),
    ),
    Mutation(
        "fresh noise on a stored release",
        LEDGER,
        "                if charge.sha256 is not None:\n                    return stored(self.folder, charge)\n",
        "                if charge.sha256 is not None:\n                    return make()\n",
        (OF_LEDGER, OF_GATE),
    ),
    Mutation(
        "stored bytes are not checked",
        LEDGER,
        "if data is None or hashlib.sha256(data).hexdigest() != charge.sha256:",
        "if data is None:",
        (OF_LEDGER,),
    ),
    Mutation(
        "multiplicity ignored in the plan",
        "privacy/plan.py",
        "noise = noise_multiplier(epsilon, delta, releases, multiplicity)",
        "noise = noise_multiplier(epsilon, delta, releases, 1)",
        (OF_PLAN,),
    ),
    Mutation(
        "releases counted once",
        "privacy/plan.py",
        "noise = noise_multiplier(epsilon, delta, releases, multiplicity)",
        "noise = noise_multiplier(epsilon, delta, 1, multiplicity)",
        (OF_PLAN,),
    ),
    Mutation(
        "the gap of discrete noise ignored",
        GATE,
        "cost = Cost(plan.mu, gap=plan.multiplicity * gap_of(sd, numbers, noise))",
        "cost = Cost(plan.mu)",
        (OF_GATE,),
    ),
    Mutation(
        "releases charged half their mu",
        GATE,
        "cost = Cost(plan.mu, gap=",
        "cost = Cost(plan.mu / 2, gap=",
        (OF_GATE,),
    ),
    Mutation(
        "noise from a seed",
        "privacy/noise.py",
        "words = np.frombuffer(bytearray(os.urandom(8 * size)), dtype=np.uint64)",
        "words = np.random.default_rng(0).integers(0, 2**64, size, dtype=np.uint64)",
        ("tests/privacy/test_noise.py",),
    ),
    Mutation(
        "reused noise",
        SUMS,
        "        drawn = torch.from_numpy(discrete_gaussian(total.numel(), Fraction(sd / UNIT) ** 2))\n",
        "        drawn = torch.from_numpy(discrete_gaussian(1, Fraction(sd / UNIT) ** 2)).expand(total.numel())\n",
        (OF_SUMS,),
    ),
    Mutation(
        "logits for simplex",
        "methods/mechanisms/output_perturbation.py",
        "onto_simplex(probs.cpu())",
        "probs.cpu().double()",
        (OF_OUTPUTS,),
    ),
    Mutation(
        "the sensitivity of one output for all",
        "privacy/simplex.py",
        "return math.sqrt(2 * points)",
        "return math.sqrt(2)",
        ("tests/privacy/test_paper.py",),
    ),
    Mutation(
        "sampling is not secret",
        NOISY_SUMS,
        "poisson_batch(len(records), self.sampling_rate, sample)",
        "poisson_batch(len(records), self.sampling_rate, torch.Generator().manual_seed(client.seed))",
        (OF_DP_FEDAVG,),
    ),
    Mutation(
        "a denominator that depends on the records",
        DP_FEDAVG,
        "(self.sampling_rate * self.records)",
        "(self.sampling_rate * len(client.train))",
        (OF_DP_FEDAVG,),
    ),
    Mutation(
        "warm-up of DP-FedAvg not counted",
        NOISY_SUMS,
        "self.releases(rounds + 1)",
        "self.releases(rounds)",
        (OF_DP_FEDAVG,),
    ),
    Mutation(
        "multiplicity ignored by DP-FedAvg",
        NOISY_SUMS,
        "self.noise_multiplier(client.rounds, client.multiplicity)",
        "self.noise_multiplier(client.rounds)",
        (OF_DP_FEDAVG,),
    ),
    Mutation(
        "half the noise of noisy sums",
        NOISY_SUMS,
        "with_noise(total, z * self.clip,",
        "with_noise(total, 0.5 * z * self.clip,",
        (OF_DP_FEDSGD,),
    ),
    Mutation(
        "one client's part charged of noisy sums",
        NOISY_SUMS,
        "sums = self.sums_in_turn * client.multiplicity",
        "sums = self.sums_in_turn",
        (OF_DP_FEDSGD,),
    ),
    Mutation(
        "rounds beyond the plan of noisy sums",
        NOISY_SUMS,
        "if round_number > client.rounds:",
        "if round_number > client.rounds + 1:",
        (OF_DP_FEDSGD,),
    ),
    Mutation(
        "the round left out of the question for noisy sums",
        NOISY_SUMS,
        'asked = {"round": round_number, "z": z}',
        'asked = {"z": z}',
        (OF_DP_FEDSGD,),
    ),
    Mutation(
        "the weights left out of the question for noisy sums",
        "methods/own_budget.py",
        "digest_of(self.mechanism, *(one.cpu() for one in given), ",
        "digest_of(self.mechanism, ",
        (OF_DP_FEDSGD,),
    ),
    Mutation(
        "the own control variate left out of the question of DP-SCAFFOLD",
        "methods/dp_scaffold.py",
        "(x, c, state.carried)",
        "(x, c)",
        (OF_DP_SCAFFOLD,),
    ),
    Mutation(
        "the weights of DP-SCAFFOLD from outside the release",
        "methods/dp_scaffold.py",
        "y = x - rate * self.steps * (control + correction)",
        "y = client.network.weights.clone()",
        (OF_DP_SCAFFOLD,),
    ),
    Mutation(
        "the noise of PATE for one point",
        "methods/pate.py",
        "simplex_sensitivity(len(asked))",
        "simplex_sensitivity(1)",
        (OF_PATE,),
    ),
    Mutation(
        "parts of PATE by a record's place",
        "methods/pate.py",
        "parts = [part_of(x, y, self.teachers) for x, y in zip(records.x, records.y, strict=True)]",
        "parts = [place % self.teachers for place in range(len(records))]",
        (OF_PATE,),
    ),
    Mutation(
        "chance shared by teachers of PATE",
        "methods/pate.py",
        "with repeatable(own):",
        "if own:",
        (OF_PATE,),
    ),
    Mutation(
        "multiplicity ignored by PATE",
        "methods/pate.py",
        "cost = Cost(composed_mu(z, client.multiplicity), gap=gap)",
        "cost = Cost(composed_mu(z, 1), gap=gap)",
        (OF_PATE,),
    ),
    Mutation(
        "updates of clients not clipped by the server",
        DP_FEDAVG,
        'clip_update(reply.arrays["weights"].double(), self.clip)',
        'reply.arrays["weights"].double()',
        (OF_DP_FEDAVG,),
    ),
    Mutation(
        "facts shared under privacy",
        "deployment/site_file.py",
        'self.share_metrics != "no" and terms.chosen().protects(terms.privacy) is None',
        'self.share_metrics != "no"',
        ("tests/cli/test_privacy.py::test_facts_are_audited_where_sites_would_send_them",),
    ),
    Mutation(
        "epsilon of a Gaussian without its second term",
        "privacy/accountant.py",
        "    return max(0.0, -math.exp(with_record) * math.expm1(min(0.0, without - with_record)))",
        "    return 0.5 * max(0.0, -math.exp(with_record) * math.expm1(min(0.0, without - with_record)))",
        (OF_ACCOUNTANT,),
    ),
    Mutation(
        "an audit that sees no facts",
        "audit/exchange_attacks.py",
        "return Answer(update.message, update.info if facts else {})",
        "return Answer(update.message)",
        (f"{AUDIT}::test_facts_that_leave_are_caught",),
    ),
    Mutation(
        "an audit that does not see the size of noise",
        "audit/attack.py",
        "size = math.log(power / answered) if power > 0 else 0.0",
        "size = 0.0",
        (f"{AUDIT}::test_noise_that_depends_on_the_number_of_records_is_caught",),
    ),
    Mutation(
        "an audit that chooses by what it counts",
        "audit/bounds.py",
        "tried, there = shown[:pilot], present[:pilot]",
        "tried, there = shown, present",
        ("tests/audit/test_bounds.py::test_what_is_counted_chooses_nothing",),
    ),
    Mutation(
        "secrets kept after shares are revealed",
        "privacy/secure/client_half.py",
        "return self._forgetful(), b",
        "return self, b",
        (OF_PROTOCOL,),
    ),
    Mutation(
        "survivors that nobody voted for",
        "privacy/secure/client_half.py",
        "if flags != self.survivors:",
        "if False:",
        (OF_PROTOCOL,),
    ),
    Mutation(
        "signatures of peers' keys not checked",
        "privacy/secure/session.py",
        "        if not self.signers:\n            return",
        "        if self.about:\n            return",
        (OF_PROTOCOL,),
    ),
    Mutation(
        "no mask of one's own",
        "privacy/secure/client_half.py",
        "words(numbers) + mask(self.seed, session.numbers)",
        "words(numbers) + 0 * mask(self.seed, session.numbers)",
        (OF_PROTOCOL,),
    ),
    Mutation(
        "noise divided among all clients, corrupt ones included",
        "privacy/secure/noise_shares.py",
        "return self.threshold - self.corrupt",
        "return self.clients",
        (OF_SHARES,),
    ),
    Mutation(
        "a record of several clients moves the sum once",
        "privacy/secure/noise_shares.py",
        "releases, multiplicity**2)",
        "releases, multiplicity)",
        (OF_SHARES,),
    ),
    Mutation(
        "numbers of one sum go into a second",
        "methods/mechanisms/aggregation.py",
        "sums(occasion)",
        'sums("")',
        (OF_AGGREGATION,),
    ),
    Mutation(
        "the joined guarantee charged in place of the local one",
        GATE,
        "cost = Cost(plan.mu, gap",
        "cost = Cost(plan.mu / (3 if self.settings.secure else 1), gap",
        (OF_AGGREGATION,),
    ),
    Mutation(
        "answers looked for by the records",
        ACCOUNT,
        "if self.run and (before := self._answered(name, inputs)) is not None:",
        "if (before := None) is not None:",
        (OF_CAPS, OF_ACCOUNT),
    ),
    Mutation(
        "the same answer in another run",
        ACCOUNT,
        "{question}|{self.run}|{self.occasion}",
        "{question}|{self.occasion}",
        (OF_CAPS, OF_ACCOUNT),
    ),
    Mutation(
        "ledgers behind a link passed over",
        ACCOUNT,
        "if (here / name).is_symlink():",
        "if False:",
        (OF_ACCOUNT,),
    ),
    Mutation(
        "hashes of records not checked",
        LEDGER,
        "return kept if kept and hashlib.sha256(kept).hexdigest() == spending.records else None",
        "return kept",
        (OF_ACCOUNT,),
    ),
    Mutation(
        "held out by place instead of by content",
        "data/holdout.py",
        "numbers < np.uint64(share * 2**64)",
        "np.random.default_rng(0).permutation(len(numbers)) < share * len(numbers)",
        ("tests/deployment/test_site.py",),
    ),
    Mutation(
        "sums cut off after their noise",
        SUMS,
        "(total.clamp(-LARGEST, LARGEST) + drawn.view_as(total))",
        "(total + drawn.view_as(total))",
        (OF_SUMS,),
    ),
    Mutation(
        "joined sums without a budget",
        ACCOUNT,
        "if self.joined is not None:",
        "if False:",
        (OF_ACCOUNT,),
    ),
    Mutation(
        "votes of any aggregation count",
        "privacy/secure/session.py",
        'b"vote" + self.context + hashlib.sha256(cards).digest()',
        'b"vote" + self.context',
        (OF_PROTOCOL,),
    ),
    Mutation(
        "secrets of an aggregation kept",
        "deployment/node.py",
        "one_turn=terms.privacy.secure",
        "one_turn=False",
        ("tests/deployment/test_secure_aggregation.py",),
    ),
    Mutation(
        "sites with noise of different size",
        "deployment/site.py",
        "if terms.privacy.secure and own != terms.multiplicity:",
        "if False:",
        ("tests/deployment/test_secure_aggregation.py",),
    ),
)
