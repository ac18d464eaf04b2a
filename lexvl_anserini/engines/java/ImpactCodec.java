package lexvl;

import java.io.IOException;
import java.util.Iterator;
import java.util.TreeSet;
import org.apache.lucene.codecs.Codec;
import org.apache.lucene.codecs.FieldsConsumer;
import org.apache.lucene.codecs.FieldsProducer;
import org.apache.lucene.codecs.FilterCodec;
import org.apache.lucene.codecs.NormsProducer;
import org.apache.lucene.codecs.PostingsFormat;
import org.apache.lucene.index.Fields;
import org.apache.lucene.index.FilterLeafReader;
import org.apache.lucene.index.SegmentReadState;
import org.apache.lucene.index.SegmentWriteState;
import org.apache.lucene.index.Terms;

/**
 * Lucene's codec, which gets the postings of one field from us when it merges, not from the segments. Lucene's merging
 * would hand every posting through four more objects. What it writes is read by Lucene's codec of the same name.
 */
final class ImpactCodec extends FilterCodec {
    private static final String ID = "id";

    private final String field;
    private Terms postings;
    private IdCoder ids;

    ImpactCodec(String field) {
        super(Codec.getDefault().getName(), Codec.getDefault());
        this.field = field;
    }

    /**
     * The next merge.
     *
     * @param postings null if no document has any
     * @param ids takes the ids while they are merged; may be null
     */
    void feed(Terms postings, IdCoder ids) {
        this.postings = postings;
        this.ids = ids;
    }

    @Override
    public PostingsFormat postingsFormat() {
        return new Fed(delegate.postingsFormat());
    }

    private final class Fed extends PostingsFormat {
        private final PostingsFormat format;

        Fed(PostingsFormat format) {
            super(format.getName());
            this.format = format;
        }

        @Override
        public FieldsConsumer fieldsConsumer(SegmentWriteState state) throws IOException {
            FieldsConsumer consumer = format.fieldsConsumer(state);
            return new FieldsConsumer() {
                /** Merging ends here too, with the merged fields. */
                @Override
                public void write(Fields fields, NormsProducer norms) throws IOException {
                    consumer.write(new FedFields(fields), norms);
                }

                @Override
                public void close() throws IOException {
                    consumer.close();
                }
            };
        }

        @Override
        public FieldsProducer fieldsProducer(SegmentReadState state) throws IOException {
            return format.fieldsProducer(state);
        }
    }

    private final class FedFields extends FilterLeafReader.FilterFields {
        FedFields(Fields fields) {
            super(fields);
        }

        @Override
        public Iterator<String> iterator() {
            TreeSet<String> names = new TreeSet<>();
            for (String name : in) {
                names.add(name);
            }
            if (postings != null) {
                names.add(field);
            }
            return names.iterator();
        }

        @Override
        public Terms terms(String name) throws IOException {
            if (name.equals(field)) {
                return postings;
            }
            Terms terms = super.terms(name);
            return ids != null && name.equals(ID) ? ids.taking(terms) : terms;
        }

        @Override
        public int size() {
            return -1;
        }
    }
}
