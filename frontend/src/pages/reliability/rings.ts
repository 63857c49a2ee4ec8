import type { PublicationLive, ReceiverLive } from "@/live/types";

/** Where each stage of a publication stands, as shares of its ring; 1 = the head. */
interface Stages {
  consumed: number;
  sent: number;
  held: number;
  unsent: number;
}

/** Packets between two positions that came as strings; never below nothing. */
export function behind(head: string, position: string | null | undefined): number {
  if (position == null) return 0;
  const gap = BigInt(head) - BigInt(position);
  return gap > 0n ? Number(gap) : 0;
}

export function stagesOf(publication: PublicationLive): Stages {
  const slots = Math.max(1, Number(publication.slots));
  const unsent = behind(publication.head, publication.sent);
  const unconsumed = behind(publication.head, publication.slowest_consumed);
  const share = (packets: number) => Math.min(1, packets / slots);
  return {
    unsent: share(unsent),
    held: share(Math.max(0, unconsumed - unsent)),
    sent: 1 - share(unsent),
    consumed: 1 - share(unconsumed),
  };
}

/** Which stage of a publication is behind, in words. */
export function bottleneck(
  publication: PublicationLive,
  receivers: readonly ReceiverLive[],
): string {
  const { unsent, held } = stagesOf(publication);
  if (publication.receivers === 0) return "no receiver";
  if (unsent < 0.05 && held < 0.25) return "none";
  if (unsent >= held) return publication.rates.rate_held > 0 ? "sender: rate limit" : "sender";
  const slowest = receivers.find((one) => one.slowest && one.session === publication.session);
  return slowest ? `receiver ${slowest.node}` : "slowest receiver";
}
