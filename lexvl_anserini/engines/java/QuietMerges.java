package lexvl;

import org.apache.lucene.index.ConcurrentMergeScheduler;

/** Merges in threads that do not print their exceptions: the writer keeps them, and its next call throws them. */
final class QuietMerges extends ConcurrentMergeScheduler {
    /** As fast as the disk writes: Lucene's own limit is for merging while others search. */
    QuietMerges() {
        disableAutoIOThrottle();
    }

    @Override
    protected void handleMergeException(Throwable exception) {}
}
