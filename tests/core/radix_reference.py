"""The naive scheduler with a naive radix cache: a set of known contents, one block each.

A content is known once computed, and it is a leaf if no longer one that begins with it is known.
"""

from __future__ import annotations

from reference import Content, Job, Pool, ReferenceScheduler

from blis_py.core.config import SchedulerConfig


class RadixPool(Pool):
    """`free` are blank blocks, reused first; then the unused leaf that was left longest ago."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.known: dict[Content, int] = {}
        self.left_at: dict[Content, int] = {}
        self.time = 0

    def unused(self) -> list[Content]:
        return [content for content, block in self.known.items() if not self.users[block]]

    @property
    def num_free(self) -> int:
        return len(self.free) + len(self.unused())

    def is_free(self, block: int) -> bool:
        return not self.users[block]

    def take(self, job: Job) -> int:
        if not self.free:
            unused = self.unused()
            leaves = [c for c in unused if not any(len(k) > len(c) and k[: len(c)] == c for k in self.known)]
            self.free.append(self.known.pop(min(leaves, key=lambda content: self.left_at[content])))
        return super().take(job)


class RadixReference(ReferenceScheduler):
    """See the module."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.pool: RadixPool = RadixPool(config.num_kv_blocks)

    def shareable_blocks(self, job: Job) -> int:
        return job.shareable // self.config.block_size

    def publish(self, job: Job) -> None:
        """What it has computed becomes known; where it was, the job goes on with the known block."""
        pool, size = self.pool, self.config.block_size
        end = min(job.computed // size, self.shareable_blocks(job))
        copies = []
        for i in range(job.published, end):
            content = job.content((i + 1) * size)
            mine = job.blocks[i]
            known = pool.known.setdefault(content, mine)
            if known != mine:
                job.blocks[i] = known
                pool.users[known].append(job)
                pool.users[mine] = []
                copies.append(mine)
        pool.free += reversed(copies)
        job.published = max(end, job.published)

    def release(self, job: Job) -> None:
        self.publish(job)
        pool, size = self.pool, self.config.block_size
        pool.time += 1
        for block in reversed(job.blocks[job.published :]):
            pool.users[block] = []
            pool.free.append(block)
        for i, block in enumerate(job.blocks[: job.published]):
            pool.users[block].remove(job)
            if not pool.users[block]:
                pool.left_at[job.content((i + 1) * size)] = pool.time
        job.blocks, job.published = [], 0

    def cached_prefix(self, job: Job) -> list[int]:
        blocks: list[int] = []
        size = self.config.block_size
        for end in range(size, job.num_tokens, size):
            shared = end <= self.shareable_blocks(job) * size
            content = job.content(end)
            block = self.pool.known.get(content) if shared else self.pool.find(content)
            if block is None:
                break
            blocks.append(block)
        job.published = min(len(blocks), self.shareable_blocks(job))
        return blocks

    def allocate(self, job: Job, tokens: int) -> bool:
        size = self.config.block_size
        end = job.computed + tokens
        fresh = -(-end // size) - len(job.blocks)
        if fresh > self.pool.num_free:
            return False
        for _ in range(fresh):
            job.blocks.append(self.pool.take(job))
        for i in range(max(job.computed // size, self.shareable_blocks(job)), end // size):
            self.pool.content[job.blocks[i]] = job.content((i + 1) * size)  # for itself, should it come back
        return True

    def finish(self) -> list[str]:
        for job, tokens in self.granted.items():
            if not job.prefilled:
                job.computed += tokens
                self.publish(job)
                job.computed -= tokens
        return super().finish()
