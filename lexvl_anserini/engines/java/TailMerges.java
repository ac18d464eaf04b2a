package lexvl;

import java.io.IOException;
import java.util.Map;
import org.apache.lucene.index.MergePolicy;
import org.apache.lucene.index.MergeTrigger;
import org.apache.lucene.index.SegmentCommitInfo;
import org.apache.lucene.index.SegmentInfos;

/**
 * Merges the last segments of an index, when it is asked to, so that documents keep their order and the segments before
 * them their files: those from the first one on that has too few documents for those behind it, or for its deleted ones.
 */
final class TailMerges extends MergePolicy {
    /** Of `forceMerge`: as many segments as the rule leaves. */
    static final int BY_RULE = Integer.MAX_VALUE >> 1;

    /**
     * A segment has so many times the documents of all behind it, and so many times its deleted ones. There are few
     * segments then, and appending or deleting a document at a time writes others again a few times for each of them.
     */
    private static final long FACTOR = 4;

    private final boolean marking;

    /** @param marking a segment may have deleted documents; else none is left with one */
    TailMerges(boolean marking) {
        this.marking = marking;
    }

    @Override
    public MergeSpecification findMerges(MergeTrigger trigger, SegmentInfos infos, MergeContext context) {
        return null;
    }

    @Override
    public MergeSpecification findForcedMerges(
            SegmentInfos infos, int most, Map<SegmentCommitInfo, Boolean> merging, MergeContext context)
            throws IOException {
        int first = infos.size();
        long behind = 0;
        for (int i = infos.size() - 1; i >= 0; i--) {
            SegmentCommitInfo info = infos.info(i);
            int gone = context.numDeletesToMerge(info);
            long documents = info.info.maxDoc() - gone;
            boolean many = marking && most != 1 ? documents < FACTOR * gone : gone > 0;
            if (many || documents < FACTOR * behind || most == 1 && infos.size() > 1) {
                first = i;
            }
            behind += documents;
        }
        if (first == infos.size()) {
            return null;
        }
        MergeSpecification found = new MergeSpecification();
        found.add(new OneMerge(infos.asList().subList(first, infos.size())));
        return found;
    }

    /** No file that holds all others of a segment: a search opens few segments. */
    @Override
    public boolean useCompoundFile(SegmentInfos infos, SegmentCommitInfo merged, MergeContext context) {
        return false;
    }

    @Override
    public MergeSpecification findForcedDeletesMerges(SegmentInfos infos, MergeContext context) {
        return null;
    }
}
